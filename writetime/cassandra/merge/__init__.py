"""Last write wins as a semilattice over plain values.

    reconcile         merges cells, rows and partitions (Cassandra's db/rows/Cells, Row.Merger)
    counters          merges counter contexts
    unknown_marker, stand_ins   what a reading of the cluster writes for what CQL does not report, and how it yields to the log
    clustering, range_tombstones   clustering order, and deletions that cover many rows
    liveness          what SELECT returns at a given second
    row_codec         one row as bytes, which compiled code can merge
    partition_fold    folds the updates of a partition into its state, row by row
    partition, partition_head   the record of a partition in the state
    tombstone_gc      purges tombstones from the state once gc_grace has passed

Nothing here does I/O or knows where an update came from.
"""
