"""Arguments of compiled code: arrays and numbers in named tuples, which go over as one array of words and are plain pointers inside.

Strategy: numba counts references to every array that it takes out of a tuple, which costs more than what a decoder does with it; a pointer
is free. So a NamedTuple says what there is, by its annotations (`Bytes`, `Int32s`, `Ints`, `Words`, `int`, or another such NamedTuple):
`call` lays it out and calls (`words` does no more than lay out, for who keeps what he passes), and inside `reader(…)` gives it back, with a
pointer wherever there was an array.

Pointers know no length: whoever indexes one has checked before. The arrays must live as long as the call, and no address keeps them.
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
    """Run compiled code on a (named) tuple of arrays and numbers, which lives until it is done."""
    run(words(arguments))


def words(arguments: Any) -> Ints:
    """Addresses of arrays and numbers of a (named) tuple, one after the other."""
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
    """A function for compiled code that makes a `shape` of an array of words."""
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
