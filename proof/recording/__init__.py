"""The recorded ring: `record` boots three nodes, runs `workload`, and writes segments, schema and answers;
`recording` reads them.
"""
