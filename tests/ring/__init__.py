"""Real Cassandra rings for tests, and the recording that was made with one.

`cassandra` starts nodes, `workload` writes to them, `record` keeps what came out (`make record`), `recording` reads it again without
any Cassandra. `fixtures` hands a node to tests marked `cassandra`.
"""
