"""The join: last-write-wins as a semilattice over plain values.

`reconcile` merges cells, rows and whole partitions, `counters` merges counter contexts, `order` and `ranges` know clustering order and
range tombstones, `view` says what SELECT would answer, `partition` folds the updates of a batch into the state, `event` types the result.
Nothing here does I/O or knows where an update came from.
"""
