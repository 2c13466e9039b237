"""All code compiled by numba, and the Arrow batches that go in and come out.

The contract of every kernel, so that it stands in one place:

* Each has a readable twin in Python, and tests hold the two equal: `segment_walk` and `cassandra.commitlog.segment`, `mutation_kernel`
  and `mutation_decoder`, `rows`, `merge` and `cassandra.merge.row_codec`, `pack` and `row_batches`, `projection_kernel` and
  `projection`, `values` and `cassandra.types.native`.
* Input is untrusted bytes. Kernels check every offset before they read, and never raise: what they cannot decide they report by
  position, and the caller asks the readable twin, whose error says what is wrong.
* Arguments are arrays and named tuples of arrays (`pointers`). Nothing is allocated in a loop.
* They run without the GIL, and machine code is cached for a generic CPU of the architecture (`compiled`).

`mutation_columns`, `row_batches` and `projection` are the batch wrappers that other rooms call.
"""
