"""Random CQL: schemas and operations as a function of a seed.

generator = Generator(seed=1, ops=20_000)
generator.schema()                 # statements that create keyspaces, types and tables
for operation in generator: ...    # each may be executed before the next one is requested, or not
generator.minimum(20_000)          # the minimum number of each kind

values      types and values ─► tables    existing schema ─► statements    CQL
rows, together, ties, ddl   operations ─► generator    which of them, how often, in which order
"""

from proof.ring.generate.generator import KINDS, Generator

__all__ = ["KINDS", "Generator"]
