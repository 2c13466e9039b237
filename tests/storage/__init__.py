"""Tests of the object stores: one conformance suite over all backends, and what is particular to each."""
