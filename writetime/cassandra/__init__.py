"""What Cassandra writes and how it reconciles: types, the commit log, the schema, and last-write-wins.

    types       CQL types: bytes to values and back, and Cassandra's order of values
    commitlog   segments: header, sections, frames, mutations, compression and encryption
    schema      the schema, learnt from mutations of `system_schema` and from snapshots
    merge       reconciliation of cells, rows and partitions, and garbage collection of tombstones
    model       a mutation as plain values, which all of these share
    token_ring  which replicas own a token
    cdc_settings   a node's own CDC settings

This room knows Cassandra alone: no object store, no Arrow, no numba, no Spark, and nothing of writetime but `errors` and `untrusted`.
"""
