"""The decoder against Cassandra's own reader: `compare` runs both over segments, `judge` runs Cassandra's (java/), `nasty` writes them."""
