"""What the files of a bucket and a warehouse hold, by whatever they are packed in: for tests that look for
what must not be there."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from lance.file import LanceFileReader

_CATALOGS = (".db", ".db-journal")


def holders(folder: Path, *needles: bytes | int | str) -> set[str]:
    """The files below the folder that hold any of these: bytes, a number of 32 bits in any spelling, or a
    text."""
    wanted = [form for needle in needles for form in _forms(needle)]
    return {
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(form in content for content in _contents(path) for form in wanted)
    }


def _forms(needle: bytes | int | str) -> list[bytes]:
    if isinstance(needle, int):
        raw = needle.to_bytes(4, "big", signed=True)
        return [raw, raw[::-1], str(needle).encode(), raw.hex().encode()]
    return [needle] if isinstance(needle, bytes) else [needle.encode()]


def _contents(path: Path) -> Iterator[bytes]:
    raw = path.read_bytes()
    yield raw
    if path.name.endswith(".zst"):
        yield bytes(pa.CompressedInputStream(pa.py_buffer(raw), "zstd").read())
    elif path.suffix == ".parquet":
        yield _shown(pq.read_table(path))
    elif path.suffix == ".avro":
        # Bounds of columns are bytes in records of a manifest.
        yield b"".join(_flat(record) for record in fastavro.reader(io.BytesIO(raw)))
    elif path.suffix == ".lance":
        yield _shown(LanceFileReader(str(path)).read_all().to_table())


def _shown(table: pa.Table) -> bytes:
    return b"\n".join(_flat(row) for row in table.to_pylist())


def _flat(value: object) -> bytes:
    """Bytes as they are, and all else as its text, one behind the other."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        return b" ".join(_flat(each) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple):
        return b" ".join(map(_flat, value))
    return str(value).encode()
