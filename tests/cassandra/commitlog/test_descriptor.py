"""Headers: real, packed and invalid ones."""

from __future__ import annotations

import struct

import pytest

from tests.cassandra.commitlog.examples import V8_HEADER_AND_MARKER
from writetime.cassandra.commitlog.descriptor import Descriptor, _header_crc, parse
from writetime.errors import CorruptDescriptor, NotASegment, SegmentError, UnsupportedSegment


def test_a_real_header() -> None:
    assert parse(V8_HEADER_AND_MARKER) == (Descriptor(8, 1_795_248_800_211), 20)
    assert Descriptor(8, 1_795_248_800_211).encode() == V8_HEADER_AND_MARKER[:20]


@pytest.mark.parametrize("version", [6, 7, 8])
def test_headers_come_back(version: int) -> None:
    descriptor = Descriptor(version, 2**40 + 5)
    assert parse(descriptor.encode() + b"\0" * 9) == (descriptor, 20)


@pytest.mark.parametrize(
    ("params", "codec"),
    [
        ({"compressionClass": "LZ4Compressor"}, "LZ4Compressor"),
        ({"compressionClass": "org.apache.cassandra.io.compress.ZstdCompressor"}, "ZstdCompressor"),
        ({"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "k", "encIV": "00"}, "encrypted with AES/CBC/PKCS5Padding"),
        ({"encCipher": "AES/CTR", "encKeyAlias": "k", "compressionClass": "LZ4Compressor"}, "encrypted with AES/CTR"),
        ({"encCipher": "AES/CTR", "compressionClass": "LZ4Compressor"}, "LZ4Compressor"),
    ],
)
def test_packed_segments_say_how(params: dict[str, str], codec: str) -> None:
    header = Descriptor(7, 9, params).encode()
    descriptor, start = parse(header, name="CommitLog-7-9.log")
    assert (descriptor.params, descriptor.codec, start) == (params, codec, len(header))
    assert descriptor.encrypted == codec.startswith("encrypted")


def test_a_codec_of_null_is_none() -> None:
    descriptor, _ = parse(Descriptor(7, 9, {"compressionClass": None, "compressionParameters": None}).encode())
    assert descriptor.codec is None


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", NotASegment),
        (b"2026-11-22 10:00:00 INFO  a log of another kind\n", NotASegment),
        (b"\0" * 100, NotASegment),
        (b"\0\0", NotASegment),
        (b"\x89PNG\r\n\x1a\n", NotASegment),
        (b"\0\0\0\5" + b"\0" * 30, UnsupportedSegment),
        (Descriptor(10, 1).encode(), UnsupportedSegment),
        (b"\0\0\0\x09" + b"\0" * 30, CorruptDescriptor),
        (Descriptor(7, 1).encode()[:-1], CorruptDescriptor),
        (Descriptor(7, 1).encode()[:5], CorruptDescriptor),
    ],
)
def test_what_is_no_readable_segment(content: bytes, error: type[SegmentError]) -> None:
    with pytest.raises(error) as raised:
        parse(content, name="CommitLog-7-1.log")
    assert raised.value.obj == "CommitLog-7-1.log"


def test_every_flipped_bit_of_the_header_is_noticed() -> None:
    header = Descriptor(7, 2**40 + 5).encode()
    for position in range(len(header)):
        for bit in range(8):
            changed = bytearray(header)
            changed[position] ^= 1 << bit
            with pytest.raises(SegmentError):
                parse(bytes(changed))


@pytest.mark.parametrize("params", [b"[" * 60_000, b'{"a":' * 10_000], ids=["arrays", "objects"])
def test_parameters_nested_without_end(params: bytes) -> None:
    fixed = struct.pack(">iqH", 7, 1, len(params))
    with pytest.raises(CorruptDescriptor, match="not valid JSON"):
        parse(fixed + params + struct.pack(">I", _header_crc(7, 1, params)))
