"""Reproducible benchmarks: `make bench-…`. Not part of the tests; the product imports nothing from here."""
