"""CQL by chance: schemas and operations from a seed, and from nothing else.

generator = Generator(seed=1, ops=20_000)
generator.schema()                 # statements that make keyspaces, types and tables
for operation in generator: ...    # each to be run before the next one is asked for, or not: it makes no difference
generator.minimum(20_000)          # how many of each kind there are at least

values      types and values ─► tables    what exists ─► statements    CQL
rows, together, ties, ddl   makers of operations ─► generator    which of them, how often, in what order
"""

from proof.ring.generate.generator import KINDS, Generator

__all__ = ["KINDS", "Generator"]
