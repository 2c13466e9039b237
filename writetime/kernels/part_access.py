"""How compiled code reads the parts of rows (`row_parts`): their buffers, which values are null, and copying bytes."""

from __future__ import annotations

from typing import Any, Final

from numba.core import cgutils

from writetime.kernels.compiled import Bytes, Ints, compiled, intrinsic, types
from writetime.kernels.pointers import reader
from writetime.kernels.row_parts import FIRST, VALID, Rows

SOURCES: Final = ("kernels/part_access.py", "kernels/row_parts.py")
"""The sources of this module's machine code in addition to those of the decoder."""

read_rows = reader(Rows)
"""The arguments of a kernel, from their words."""


def _pointer(kind: Any) -> Any:
    """A function for compiled code from an address to a pointer to such items."""

    @intrinsic
    def pointer(_typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(address), generate

    return pointer


as_bytes, as_int32s, as_int64s = _pointer(types.uint8), _pointer(types.int32), _pointer(types.int64)


@intrinsic
def copy(_typing: Any, out: Any, pos: Any, data: Any, at: Any, length: Any) -> Any:
    """Copy data[at:at + length] to out[pos:], which does not overlap. Returns the position after it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out_, pos_, data_, at_, length_ = arguments
        memcpy: Any = cgutils.raw_memcpy
        memcpy(builder, builder.gep(out_, [pos_]), builder.gep(data_, [at_]), length_, 1)
        return builder.add(pos_, length_)

    return types.int64(out, types.int64, data, types.int64, types.int64), generate


@compiled
def bit(bits: Bytes, at: int) -> bool:
    return (bits[at >> 3] >> (at & 7)) & 1 != 0  # type: ignore[no-any-return]


@compiled
def is_null(words: Ints, w: int, i: int) -> bool:
    """Whether value i of the part at word w is null."""
    return words[w + VALID] != 0 and not bit(as_bytes(words[w + VALID]), words[w + FIRST] + i)
