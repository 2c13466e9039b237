"""Arguments of compiled code: named tuples of arrays and numbers, passed as one array of words, used as plain
pointers.

Strategy: numba counts references to every array that it takes out of a tuple, which costs more than the work
of a decoder; a pointer is free. The annotations of a NamedTuple describe the arguments (`Bytes`, `Int32s`,
`Ints`, `Words`, `int`, or another such NamedTuple). `call` lays them out and calls (`words` only lays them
out, for callers that keep them), and `reader(…)` restores the tuple in compiled code, with pointers instead
of arrays.

Pointers have no length, so every index must be checked before. The arrays must outlive the call; addresses do
not keep them alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import numpy as np

from writetime.kernels.compiled import (
    Bytes,
    Int32s,
    Ints,
    Words,
    intrinsic,
    types,
)

_KINDS: dict[Any, Any] = {
    Bytes: types.CPointer(types.uint8),
    Int32s: types.CPointer(types.int32),
    Ints: types.CPointer(types.int64),
    Words: types.CPointer(types.uint64),
    int: types.int64,
}


def call(run: Callable[[Ints], Any], arguments: Any) -> None:
    """Run compiled code on a (named) tuple of arrays and numbers, which is kept alive during the call."""
    run(words(arguments))


def words(arguments: Any) -> Ints:
    """The arrays' addresses and the numbers of a (named) tuple, in order."""
    flat: list[int] = []
    _flatten(arguments, flat)
    return np.array(flat, np.int64)


def _flatten(value: Any, into: list[int]) -> None:
    for item in value:
        if isinstance(item, np.ndarray):
            into.append(item.__array_interface__["data"][0])
        elif isinstance(item, tuple):
            _flatten(item, into)
        else:
            into.append(item)


def reader(shape: Any) -> Any:
    """A function for compiled code that restores a `shape` from an array of words."""
    kind = _kind(shape)

    @intrinsic
    def read(_typing: Any, array: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            return _load(context, builder, kind, iter(range(1 << 20)), data)

        return kind(array), generate

    return read


def _kind(shape: Any) -> Any:
    hints = get_type_hints(shape)
    return types.NamedTuple([_KINDS[hint] if hint in _KINDS else _kind(hint) for hint in hints.values()], shape)


def _load(context: Any, builder: Any, kind: Any, places: Iterator[int], data: Any) -> Any:
    if isinstance(kind, types.NamedTuple):
        return context.make_tuple(builder, kind, [_load(context, builder, item, places, data) for item in kind.types])
    place = context.get_constant(types.intp, next(places))
    word = builder.load(builder.gep(data, [place]))
    return builder.inttoptr(word, context.get_value_type(kind)) if isinstance(kind, types.CPointer) else word
