"""Proofs: long runs that compare the product with real Cassandra, kill it, and break it on purpose. `make
prove NAME=…`

    ring           a real ring under chaos: tables and events equal its answers
    decoder        segments of many nodes against Cassandra's own reader
    fuzz           damaged and made-up segments, in both engines, and against Cassandra
    kill_shipper   the shipper, killed at every step
    kill_batch     ingest and publish, killed, late and in pairs, at every step
    kill_cluster   executors, machines and drivers of a standalone cluster of Spark, killed
    pressure       a node near `cdc_total_space`: no write rejected, nothing lost
    bootstrap      tables read from a ring while it is written to
    orders         one input, in many orders and batches: the same tables
    recording      makes the recorded ring that tests read
    interleavings  drivers beside each other, in every order of their requests
    doubles        broker and warehouse in memory, which pass the cases that the real ones pass
    harness        Cassandra nodes and drivers, which all of these share

Short runs of each are tests (tests/proof). Proofs may use what tests have; the product knows neither.
"""
