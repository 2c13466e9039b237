"""How fast things are, in figures that can be had again: `make bench-…`. Not part of the tests; nothing here is imported by the product."""
