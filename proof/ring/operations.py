"""The operations that a generator yields and a run executes. Knows neither of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Operation:
    """One request. `cql` takes `values` where it has `?`; of a batch (`batch`: statements with their values)
    `cql` is the first line.

    `consistency` None: the runner chooses among those that the nodes which are up can give. `serial`: a
    conditional statement. `needs_all_up`: truncate and whatever else every node has to agree to. `ddl`: it
    changes the schema, on the nodes that are up. `flush`: before it, every node flushes (what a memtable
    holds of a dropped column is neither there nor not). `after_batch`: before it, all that was written so far
    is shipped and taken in. `kept_by`, of a TRUNCATE: how many nodes keep the segment that records it, none
    or one; None: as it happens.
    """

    kind: str
    cql: str
    values: tuple[Any, ...] = ()
    batch: list[tuple[str, tuple[Any, ...]]] | None = None
    consistency: str | None = None
    serial: bool = False
    needs_all_up: bool = False
    ddl: bool = False
    flush: bool = False
    after_batch: bool = False
    kept_by: int | None = None

    @property
    def needs_one_version(self) -> bool:
        """Whether a ring refuses it, or may, whose nodes are of two versions."""
        return self.ddl or self.needs_all_up or self.flush or self.after_batch


class Generator(Protocol):
    """Operations from a seed: the same ones every time."""

    kinds: Any
    """Kinds of operations that it knows."""

    def schema(self) -> list[str]:
        """Statements that make the keyspaces, types and tables to begin with."""

    def __iter__(self) -> Iterator[Operation]: ...

    def minimum(self, ops: int) -> dict[str, int]:
        """How many operations of each kind a run of that many has to have done."""
