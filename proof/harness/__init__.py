"""Real Cassandra for proofs and tests: `cassandra` downloads and starts nodes, `node` is one of them,
`driver` connects, `classpath` resolves the jars for the Java judge (pom.xml).
"""
