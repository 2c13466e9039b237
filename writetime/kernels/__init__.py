"""All code compiled by numba, and the Arrow batches that it reads and writes.

The contract of every kernel:

* Each has a readable twin in Python, and tests compare the two: `segment_walk` and `cassandra.commitlog.segment`,
  `mutation_kernel` and `mutation_decoder`, `rows`, `merge` and `cassandra.merge.row_codec`, `pack` and `row_batches`,
  `projection_kernel` and `projection`, `values` and `cassandra.types.native`, `json_text` and `events.envelope`,
  `avro_data` and fastavro.
* Input is untrusted. Kernels check every offset before they read, and never raise: they report positions that they
  cannot process, and the caller uses the readable twin, whose error explains the problem.
* Arguments are arrays and named tuples of arrays (`pointers`). Nothing is allocated in a loop.
* Kernels run without the GIL. Machine code is cached for a generic CPU of the architecture (`compiled`).

`mutation_columns`, `row_batches` and `projection` are the batch wrappers for other packages.
"""
