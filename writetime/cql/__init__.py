"""CQL types: bytes to values and back, and their order (`native`, `types`); their way out to Arrow and JSON (`arrow`)."""
