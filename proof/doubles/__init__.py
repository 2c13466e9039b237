"""Doubles: broker and warehouse in the memory of one process, for proofs that decide which driver goes on at each
request. Each passes the conformance suite that the real service passes (`tests/proof/doubles`)."""
