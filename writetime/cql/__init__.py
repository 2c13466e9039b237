"""CQL types: bytes to values and back, their order (`types`), and their way out to Arrow and JSON (`arrow`)."""
