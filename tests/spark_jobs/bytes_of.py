"""What the objects of a bucket and a warehouse hold, by whatever they are packed in: for tests that look for what must not
be there."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from lance.file import LanceFileReader

from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.commitlog.segment import scan
from writetime.errors import SegmentError
from writetime.storage.store import Store

_SEGMENT = re.compile(r"CommitLog-\d+-\d+(?:~[0-9a-f]{8})?\.log")


def holders(folder: Path, *needles: bytes | int | str, keys: Keystore | None = None) -> set[str]:
    """The files below the folder that hold any of these: bytes, a number of 32 bits in any spelling, or a
    text."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return _with(((str(path.relative_to(folder)), path.read_bytes()) for path in files), needles, keys)


def held_in(store: Store, *needles: bytes | int | str, keys: Keystore | None = None) -> set[str]:
    """The same of all objects of a store."""
    return _with(((each.name, store.read(each.name)) for each in store.names("")), needles, keys)


class Searched(NamedTuple):
    """What a search of a store reads: objects, their bytes, the bytes that decoding makes of them, and the objects
    that are read only as they are."""

    objects: int
    stored: int
    decoded: int
    undecoded: set[str]


def searched(store: Store, keys: Keystore | None = None) -> Searched:
    """All objects of a store, as `held_in` reads them."""
    names, stored, decoded, undecoded = 0, 0, 0, set[str]()
    for each in store.names(""):
        raw, *more = _contents(each.name, store.read(each.name), keys)
        names, stored, decoded = names + 1, stored + len(raw), decoded + sum(map(len, more))
        if not more:
            undecoded.add(each.name)
    return Searched(names, stored, decoded, undecoded)


def _with(files: Iterable[tuple[str, bytes]], needles: Iterable[bytes | int | str], keys: Keystore | None) -> set[str]:
    wanted = [form for needle in needles for form in _forms(needle)]
    return {name for name, raw in files if any(form in content for content in _with_name(name, raw, keys) for form in wanted)}


def _with_name(name: str, raw: bytes, keys: Keystore | None) -> Iterator[bytes]:
    """The name too: that of a partition's folder is a value."""
    yield name.encode()
    yield from _contents(name, raw, keys)


def _forms(needle: bytes | int | str) -> list[bytes]:
    """As it may be spelt: raw, in hex, in base64 at any place, as text and as JSON escapes it."""
    if isinstance(needle, int):
        raw = needle.to_bytes(4, "big", signed=True)
        return [raw[::-1], str(needle).encode(), *_forms(raw)]
    raw = needle if isinstance(needle, bytes) else needle.encode()
    forms = [raw, raw.hex().encode(), raw.hex().upper().encode()]
    for before in range(3):
        # Without the characters that its neighbours have a part in.
        text = base64.b64encode(bytes(before) + raw)[-(-before * 4 // 3) : (before + len(raw)) * 8 // 6]
        forms += [text, text.translate(bytes.maketrans(b"+/", b"-_"))]
    if isinstance(needle, str):
        forms.append(json.dumps(needle)[1:-1].encode())
    return forms


def _contents(name: str, raw: bytes, keys: Keystore | None) -> Iterator[bytes]:
    yield raw
    file = name.rpartition("/")[2]
    if raw.startswith(b"\x1f\x8b"):
        yield from _contents(file.replace(".gz", ""), gzip.decompress(raw), keys)
    elif file.endswith(".zst"):
        yield from _contents(file.removesuffix(".zst"), bytes(pa.CompressedInputStream(pa.py_buffer(raw), "zstd").read()), keys)
    elif _SEGMENT.fullmatch(file):
        yield from _segment(file, raw, keys)
    elif raw.startswith(b"PAR1"):
        table = pq.ParquetFile(io.BytesIO(raw))
        yield _shown(table.read())
        yield _flat(table.metadata.to_dict())
    elif raw.startswith(b"Obj\x01"):
        # Bounds of columns are bytes in records of a manifest.
        records = fastavro.reader(io.BytesIO(raw))
        yield b"".join(_flat(record) for record in records) + _flat(records.metadata)
    elif file.endswith(".lance"):
        with tempfile.NamedTemporaryFile(suffix=".lance") as copy:
            copy.write(raw)
            copy.flush()
            yield _shown(LanceFileReader(copy.name).read_all().to_table())
    elif raw.lstrip()[:1] in (b"{", b"["):
        yield _flat(json.loads(raw))


def _segment(file: str, raw: bytes, keys: Keystore | None) -> Iterator[bytes]:
    """A segment's image, decompressed and decrypted, and its bodies one by one. Of one that cannot be read, nobody knows what
    it holds."""
    found = scan(raw, name=file, keys=keys)
    if found.descriptor.codec is not None and found.problems:
        raise SegmentError("not readable as a whole", operation="look for bytes", obj=file)
    yield bytes(found.image)
    yield b"".join(found.body(frame) for frame in found.frames)


def _shown(table: pa.Table) -> bytes:
    return b"\n".join(_flat(row) for row in table.to_pylist())


def _flat(value: object) -> bytes:
    """Bytes as they are, and all else as its text, one behind the other; what a text is JSON of, too."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping):
        return b" ".join(_flat(each) for pair in value.items() for each in pair)
    if isinstance(value, list | tuple):
        return b" ".join(map(_flat, value))
    text = str(value)
    if text[:1] in ("{", "["):
        try:
            return text.encode() + _flat(json.loads(text))
        except ValueError:
            pass
    return text.encode()
