"""Compares the two decoders to Arrow on the same bodies: equal batches, equal failures, no access outside the
arrays.

Strategy: bodies of many cases are pooled, because the compiled decoder reads the whole schema once per call.
They are in guarded memory, so that an access outside kills the process, and output arrays have known bytes
before and behind. If a pool fails, it is checked body by body to find the case.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any
from unittest import mock

import numpy as np

from proof.fuzz.guard import Guarded
from writetime.cassandra.commitlog.segment import Engine, Frame
from writetime.cassandra.schema.model import Schema
from writetime.kernels import mutation_buffers, mutation_decoder
from writetime.kernels.mutation_columns import Decoded

ROOM = 1 << 18
MOST_BODIES = 256
_CANARY = 64
_KNOWN = 0xA5


class TwinsDiffer(AssertionError):
    """The decoders disagree, or one wrote outside its arrays. `number` is the case's."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class Twins:
    """Takes bodies with the number of their case, and decodes them when the pool is full."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.guarded = Guarded(ROOM)
        self.pools: dict[int, list[tuple[int, bytes]]] = {7: [], 8: [], 9: []}
        self.size = 0
        self.cells = 0

    def load(self, body: bytes, version: int) -> None:
        """Decode and compare a body, so that what Arrow imports for its first array (pandas, 46 MB) is there before the
        memory of a case is counted. The compiled decoder has `compile_ahead`."""
        readable = self._decoded(body, _frames([body]), version, "python", ROOM)
        _compared(readable, readable)

    @property
    def oldest(self) -> int | None:
        """The lowest number of a case whose bodies have not been decoded yet."""
        return min((number for pool in self.pools.values() for number, _ in pool), default=None)

    def take(self, number: int, body: bytes, version: int) -> None:
        """A body of at most `ROOM` bytes. Raises TwinsDiffer for this case or an earlier one."""
        self.size += len(body)
        if self.size > ROOM:
            self.flush()
            self.size = len(body)
        pool = self.pools[max(version, 7)]
        pool.append((number, body))
        if len(pool) == MOST_BODIES:
            self.flush()

    def flush(self) -> None:
        """Decode the pooled bodies."""
        self.size = 0
        for version, pool in self.pools.items():
            taken, pool[:] = pool[:], []
            if taken:
                self._pool(taken, version)

    def _pool(self, pool: Sequence[tuple[int, bytes]], version: int) -> None:
        rng = Random(pool[0][0])
        why = self._difference([body for _, body in pool], version, rng)
        if why is None:
            return
        for number, body in pool:
            alone = self._difference([body], version, rng)
            if alone is not None:
                raise TwinsDiffer(number, alone)
        raise TwinsDiffer(pool[-1][0], f"cases {pool[0][0]} to {pool[-1][0]} together: {why}")

    def _difference(self, bodies: Sequence[bytes], version: int, rng: Random) -> str | None:
        """Why the two disagree, or None."""
        image, frames = b"".join(bodies), _frames(bodies)
        chunk_bytes = rng.choice((1000, *[ROOM] * 9))
        arrays: list[tuple[Any, int]] = []

        def canaried(size: int, kind: Any) -> Any:
            whole = np.full(size * np.dtype(kind).itemsize + 2 * _CANARY, _KNOWN, np.uint8)
            arrays.append((whole, size * np.dtype(kind).itemsize))
            return whole[_CANARY : len(whole) - _CANARY].view(kind)

        python = self._decoded(image, frames, version, "python", chunk_bytes)
        place = self.guarded.at_the_beginning if rng.random() < 0.2 else self.guarded.at_the_end
        least = rng.choice((1, 64, 64, 64))
        with mock.patch.object(mutation_buffers, "_empty", canaried), mock.patch.object(mutation_buffers, "_LEAST_ROOM", least):
            compiled = self._decoded(place(image), frames, version, "numba", chunk_bytes)
        if any((whole[:_CANARY] != _KNOWN).any() or (whole[_CANARY + size :] != _KNOWN).any() for whole, size in arrays):
            return "the compiled decoder wrote outside an array"
        self.cells += sum(chunk.cells.num_rows for chunk in python)
        return _compared(python, compiled)

    def _decoded(self, image: Any, frames: list[Frame], version: int, engine: Engine, chunk_bytes: int) -> list[Decoded]:
        return list(mutation_decoder.decode(image, frames, self.schema, version=version, engine=engine, chunk_bytes=chunk_bytes))


def _frames(bodies: Sequence[bytes]) -> list[Frame]:
    frames, at = [], 0
    for body in bodies:
        frames.append(Frame(at + len(body) + 4, at - 8, at, len(body)))
        at += len(body)
    return frames


def _compared(python: list[Decoded], compiled: list[Decoded]) -> str | None:
    if len(python) != len(compiled):
        return f"{len(python)} and {len(compiled)} chunks"
    for one, other in zip(python, compiled, strict=True):
        failures = [[(failure.frame, type(failure.error), str(failure.error)) for failure in each.failures] for each in (one, other)]
        if failures[0] != failures[1]:
            return f"python fails with {failures[0]}, numba with {failures[1]}"
        for name in ("updates", "rows", "cells", "complex_deletions", "ranges"):
            left, right = getattr(one, name), getattr(other, name)
            right.validate(full=True)
            if not left.equals(right):
                return f"{name} differ: python {left.to_pylist()}, numba {right.to_pylist()}"
    return None
