"""Compares the decoder with Cassandra's own reader: `compare` runs both, `judge` runs Cassandra's (java/),
`nasty` writes segments.
"""
