"""Tests of the shipper, against a folder store with faults and a real node."""
