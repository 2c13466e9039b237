"""The header of a segment (Cassandra 3.0-6.0, db/commitlog/CommitLogDescriptor).

    i32   version     6 = 3.0-3.11; 7 = 4.0, 4.1, 5.0 by default, 6.0 with storage_compatibility_mode CASSANDRA_4;
                      8 = 5.0 with storage_compatibility_mode NONE or UPGRADING; 9 = 6.0 otherwise
    i64   id          the number in the file name; increases while a node exists
    u16   length of params
    ...   params      JSON object in UTF-8: {} if plain, else compression and encryption parameters
    u32   CRC-32 of: version, low half of id, high half of id, length of params as i32, params

Encryption takes precedence: Cassandra ignores compression if both are set.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Final

from writetime.errors import CorruptDescriptor, NotASegment, UnsupportedSegment

READABLE: Final = (6, 7, 8, 9)
_FIXED = struct.Struct(">iqH")
_CRC = struct.Struct(">I")
_HIGHEST_PLAUSIBLE_VERSION = 0xFF
_UPGRADE: Final = "Upgrade writetime to a release that reads it. Nothing is lost meanwhile."


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The header of a segment. `params` is empty for a plain segment and has no nulls."""

    version: int
    id: int
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def codec(self) -> str | None:
        """None if plain, else the compressor's class name without its package, or the cipher."""
        if self.encrypted:
            return f"encrypted with {self.params['encCipher']}"
        compressor = self.params.get("compressionClass")
        return None if compressor is None else str(compressor).rsplit(".", 1)[-1]

    @property
    def encrypted(self) -> bool:
        return bool(self.params.get("encCipher") and self.params.get("encKeyAlias"))

    def encode(self) -> bytes:
        """The header's bytes."""
        params = json.dumps(self.params, sort_keys=True, separators=(",", ":")).encode()
        fixed = _FIXED.pack(self.version, self.id, len(params))
        return fixed + params + _CRC.pack(_header_crc(self.version, self.id, params))


def parse(buf: bytes, *, name: str = "") -> tuple[Descriptor, int]:
    """The header and the position after it.

    Raises NotASegment (no commit log header), CorruptDescriptor (damaged) or UnsupportedSegment (version).
    """
    where: dict[str, Any] = {"operation": "read a segment's header", "obj": name}
    if not buf:
        raise NotASegment("the file is empty", **where)
    version = struct.unpack_from(">i", buf.ljust(4, b"\0") if len(buf) < 4 else buf)[0]
    if not 0 < version <= _HIGHEST_PLAUSIBLE_VERSION:
        raise NotASegment(f"the file does not begin with a commit log version: {bytes(buf[:8]).hex(' ')}", position=0, **where)
    if version < READABLE[0]:
        raise UnsupportedSegment(f"commit log version {version} is older than Cassandra 3.0", position=0, **where)
    if len(buf) < _FIXED.size:
        raise CorruptDescriptor(f"the file ends inside the header, after {len(buf)} bytes", position=0, **where)
    version, segment_id, length = _FIXED.unpack_from(buf)
    params = bytes(buf[_FIXED.size : _FIXED.size + length])
    end = _FIXED.size + length + _CRC.size
    if len(buf) < end:
        raise CorruptDescriptor(f"the file ends inside the header of {end} bytes", position=0, **where)
    if _CRC.unpack_from(buf, end - _CRC.size)[0] != _header_crc(version, segment_id, params):
        raise CorruptDescriptor("the header's CRC is wrong: id and codec are unknown", position=end - _CRC.size, **where)
    if version not in READABLE:
        raise UnsupportedSegment(f"commit log version {version} is not supported", position=0, hint=_UPGRADE, **where)
    return Descriptor(version, segment_id, _parse_params(params, where)), end


def waits_for_reader(version: int) -> bool:
    """Whether only a later release can read segments of that version."""
    return READABLE[-1] < version <= _HIGHEST_PLAUSIBLE_VERSION


def _header_crc(version: int, segment_id: int, params: bytes) -> int:
    # The low half of the id goes first: Cassandra updates the CRC with two ints in this order.
    fixed = struct.pack(">iIIi", version, segment_id & 0xFFFFFFFF, (segment_id >> 32) & 0xFFFFFFFF, len(params))
    return zlib.crc32(params, zlib.crc32(fixed))


def _parse_params(params: bytes, where: dict[str, Any]) -> dict[str, Any]:
    try:
        parsed = json.loads(params) if params else {}
    except (ValueError, RecursionError) as error:
        raise CorruptDescriptor(f"the header's parameters are not valid JSON: {error}", position=_FIXED.size, **where) from error
    if not isinstance(parsed, dict):
        raise CorruptDescriptor("the header's parameters are not a JSON object", position=_FIXED.size, **where)
    return {key: value for key, value in parsed.items() if value is not None}
