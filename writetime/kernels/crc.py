"""CRC-32 (IEEE, as in zlib) for compiled code: with carry-less multiplication on x86 if the CPU has it, else
with tables.

Strategy: many bytes are folded to 16 bytes with the same remainder, four blocks of 16 bytes at a time (Gopal
et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009). Tables, eight
bytes a step, process those 16 bytes, short input and the rest. Machine code is for a generic CPU and has
both; `HAS_CLMUL` selects one at run time. Other architectures have tables only.
"""

from __future__ import annotations

import platform
from typing import Any, Final

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir

from writetime.kernels.compiled import Bytes, compiled, intrinsic, types

_IS_X86: Final = platform.machine().lower() in ("x86_64", "amd64")
HAS_CLMUL: Final[bool] = _IS_X86 and bool(llvm.get_host_cpu_features().get("pclmul", False))

_WORTH_FOLDING = 64
_FOLD_64 = np.array([0x0154442BD4, 0x01C6E41596], np.uint64)
"""x^(64 * 8 + 32) and x^(64 * 8 - 32) modulo the polynomial, reflected: they move 16 bytes past the next
64."""
_FOLD_16 = np.array([0x01751997D0, 0x00CCAA009E], np.uint64)
"""The same for the next 16."""

_i64: Any = np.int64


def _crc_tables() -> npt.NDArray[np.uint32]:
    """Tables by eight bytes: row n advances a byte by n further zero bytes."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        tables[0, byte] = crc
    for row in range(1, 8):
        tables[row] = (tables[row - 1] >> 8) ^ tables[0][tables[row - 1] & 0xFF]
    return tables


TABLES = _crc_tables()


@intrinsic
def _word(_typing: Any, buf: Any, pos: Any) -> Any:
    """Eight bytes of an array of bytes, little-endian."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(buf, types.int64), generate


llvm.initialize_native_asmparser()


@intrinsic
def _multiply(_typing: Any, left: Any, right: Any) -> Any:
    """The product of two 64-bit polynomials over GF(2): its low and its high half."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        pair = ir.VectorType(word, 2)
        first, second = (ir.IntType(32)(0), ir.IntType(32)(1))
        left, right = (builder.insert_element(ir.Constant(pair, [0, 0]), argument, first) for argument in arguments)
        if _IS_X86:
            kind = ir.FunctionType(pair, [pair, pair])
            left = builder.asm(kind, "pclmulqdq $$0, $2, $0", "=x,0,x", [left, right], side_effect=False)
        halves = [builder.extract_element(left, place) for place in (first, second)]
        return context.make_tuple(builder, signature.return_type, halves)

    return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), generate


@compiled
def _fold(low: Any, high: Any, by: Any) -> tuple[Any, Any]:
    a_low, a_high = _multiply(low, by[0])
    b_low, b_high = _multiply(high, by[1])
    return a_low ^ b_low, a_high ^ b_high


@compiled
def _folded(buf: Bytes, start: int, end: int, crc: int) -> tuple[Any, Any, int]:
    """16 bytes with the remainder of buf[start:stop], as two words, and `stop`, less than 16 bytes before
    `end`."""
    al, ah = _word(buf, start) ^ np.uint64(crc ^ 0xFFFFFFFF), _word(buf, start + 8)
    bl, bh = _word(buf, start + 16), _word(buf, start + 24)
    cl, ch = _word(buf, start + 32), _word(buf, start + 40)
    dl, dh = _word(buf, start + 48), _word(buf, start + 56)
    i = start + 64
    while i + 64 <= end:
        al, ah = _fold(al, ah, _FOLD_64)
        bl, bh = _fold(bl, bh, _FOLD_64)
        cl, ch = _fold(cl, ch, _FOLD_64)
        dl, dh = _fold(dl, dh, _FOLD_64)
        al, ah = al ^ _word(buf, i), ah ^ _word(buf, i + 8)
        bl, bh = bl ^ _word(buf, i + 16), bh ^ _word(buf, i + 24)
        cl, ch = cl ^ _word(buf, i + 32), ch ^ _word(buf, i + 40)
        dl, dh = dl ^ _word(buf, i + 48), dh ^ _word(buf, i + 56)
        i += 64
    al, ah = _fold(al, ah, _FOLD_16)
    al, ah = _fold(al ^ bl, ah ^ bh, _FOLD_16)
    al, ah = _fold(al ^ cl, ah ^ ch, _FOLD_16)
    al, ah = al ^ dl, ah ^ dh
    while i + 16 <= end:
        al, ah = _fold(al, ah, _FOLD_16)
        al, ah = al ^ _word(buf, i), ah ^ _word(buf, i + 8)
        i += 16
    return al, ah, i


@compiled
def _step(crc: int, word: Any) -> int:
    """Continue `crc` by eight bytes. `crc` takes part in only four of the look-ups."""
    first = crc ^ _i64(word & np.uint64(0xFFFFFFFF))
    last = _i64(word >> np.uint64(32))
    after: int = (
        _i64(TABLES[7, first & 0xFF])
        ^ _i64(TABLES[6, (first >> 8) & 0xFF])
        ^ _i64(TABLES[5, (first >> 16) & 0xFF])
        ^ _i64(TABLES[4, first >> 24])
        ^ _i64(TABLES[3, last & 0xFF])
        ^ _i64(TABLES[2, (last >> 8) & 0xFF])
        ^ _i64(TABLES[1, (last >> 16) & 0xFF])
        ^ _i64(TABLES[0, last >> 24])
    )
    return after


@compiled
def crc32(buf: Bytes, start: int, end: int, crc: int, clmul: bool) -> int:
    """CRC-32 of buf[start:end], continued from `crc`. `clmul` is `HAS_CLMUL`, or False."""
    i = start
    c = crc ^ 0xFFFFFFFF
    if clmul and end - start >= _WORTH_FOLDING:
        low, high, i = _folded(buf, start, end, crc)
        c = _step(_step(0, low), high)
    while i + 8 <= end:
        c = _step(c, _word(buf, i))
        i += 8
    while i < end:
        c = (c >> 8) ^ _i64(TABLES[0, (c ^ buf[i]) & 0xFF])
        i += 1
    return c ^ 0xFFFFFFFF
