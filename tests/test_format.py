"""docs/format.md: every hex block is decoded, and gives what the page says beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from proof.recording.recording import Recording
from tests.cassandra.commitlog.examples import EPOCH_FRAME
from writetime.cassandra.commitlog import idx, sections
from writetime.cassandra.commitlog.descriptor import parse
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.commitlog.frames import FrameCheck, check_frame, encode_frame
from writetime.cassandra.commitlog.mutation import decode_mutation, read_head
from writetime.cassandra.commitlog.mutation_json import Lines
from writetime.cassandra.commitlog.segment import scan
from writetime.cassandra.schema.model import Column, Schema, Table
from writetime.cassandra.types.literal import literal_of
from writetime.cassandra.types.types import parse_type
from writetime.cassandra.types.vint import read_unsigned

PAGE = Path(__file__).resolve().parent.parent / "docs" / "format.md"


class Example(NamedTuple):
    """A hex block: the words behind `hex`, its lines as (bytes, remark), and the JSON block right behind
    it."""

    words: list[str]
    lines: list[tuple[bytes, str]]
    expected: Any

    @property
    def data(self) -> bytes:
        return b"".join(data for data, _ in self.lines)


def examples() -> list[Example]:
    found = re.findall(r"```hex ([^\n]+)\n(.*?)```\n(?:\n```json\n(.*?)```)?", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [
        Example(words.split(), [_line(line) for line in block.splitlines()], json.loads(expected) if expected else None)
        for words, block, expected in found
    ]


def _line(line: str) -> tuple[bytes, str]:
    digits, _, remark = line.partition("#")
    return bytes.fromhex(digits), remark.strip()


def of_kind(kind: str) -> list[Example]:
    return [example for example in examples() if example.words[0] == kind]


def test_the_page_has_all_its_examples() -> None:
    kinds = [example.words[0] for example in examples()]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "vints": 1, "header": 1, "marker": 1, "segment": 1, "frame": 1, "mutation": 4, "mutation9": 1, "values": 1, "idx": 1,
    }  # fmt: skip
    assert PAGE.read_text(encoding="utf-8").count("```hex") == len(kinds)


def test_vints() -> None:
    (example,) = of_kind("vints")
    assert [read_unsigned(data, 0) for data, _ in example.lines] == [(int(remark), len(data)) for data, remark in example.lines]


def test_header() -> None:
    (example,) = of_kind("header")
    descriptor, end = parse(example.data)
    assert {"version": descriptor.version, "id": descriptor.id, "params": descriptor.params, "end": end} == example.expected


def test_marker() -> None:
    (example,) = of_kind("marker")
    segment_id, place = map(int, example.words[1:])
    next_place, crc = sections.parse_marker(example.data, 0)
    assert crc == sections.marker_crc(sections.id_crc(segment_id), place)
    assert {"next": next_place} == example.expected


def test_packed_segment() -> None:
    (example,) = of_kind("segment")
    found = scan(example.data, engine="python")
    assert found.problems == []
    markers, (_, place) = [], parse(example.data)
    while sections.is_marker(found.image, len(found.image), sections.id_crc(found.descriptor.id), place):
        markers.append(place)
        place, _ = sections.parse_marker(found.image, place)
    assert {
        "codec": found.descriptor.codec,
        "sections_at": markers,
        "frames_end_at": [frame.position for frame in found.frames],
        "file": len(example.data),
        "image": len(found.image),
    } == example.expected


def test_frame() -> None:
    (example,) = of_kind("frame")
    assert check_frame(example.data, 0, len(example.data)) == (FrameCheck.OK, example.expected["size"])
    assert update_of(example, example.data[8:-4]) == without_columns(example)


@pytest.mark.parametrize("number", range(4))
def test_mutation(number: int) -> None:
    example = of_kind("mutation")[number]
    assert update_of(example, example.data) == without_columns(example)


def test_mutation_of_version_9() -> None:
    (example,) = of_kind("mutation9")
    assert update_of(example, example.data, version=9) == without_columns(example)
    assert encode_frame(example.data) == EPOCH_FRAME


def test_recorded_mutations_are_in_the_recording(tmp_path: Path) -> None:
    wanted = [encode_frame(example.data) for example in of_kind("mutation") if "recorded" in example.words]
    assert len(wanted) == 3
    folders = Recording.open().stage(tmp_path)
    logs = [path.read_bytes() for folder in folders.values() for path in folder.glob("*.log")]
    assert all(any(frame in log for log in logs) for frame in wanted)


def test_values() -> None:
    (example,) = of_kind("values")
    told = [(data, *remark.split(": ", 1)) for data, remark in example.lines]
    assert [literal_of(parse_type(kind, "k", {}), data) for data, kind, _ in told] == [text for _, _, text in told]


def test_index() -> None:
    (example,) = of_kind("idx")
    found = idx.parse(example.data)
    assert found is not None
    assert {"synced": found.synced, "completed": found.completed} == example.expected


def update_of(example: Example, body: bytes, version: int = 7) -> dict[str, Any]:
    """What a mutation of one update says, in the words of the page."""
    table = table_of(example, read_head(body, version=version).table_id)
    schema = Schema(tables={table.id: table})
    found = scan(encode_segment(1, version, [body]), engine="python")
    line = json.loads(Lines(schema, set()).line(found, found.frames[0], decode_mutation(body, schema, version=version)))
    (update,) = line["updates"]
    assert (f"{line['ks']}.{update.pop('table')}", UUID(update.pop("id"))) == (table.full_name, table.id)
    return {"pk": line["pk"], "update": update}


def without_columns(example: Example) -> dict[str, Any]:
    return {name: value for name, value in example.expected.items() if name not in ("columns", "size")}


def table_of(example: Example, table_id: UUID) -> Table:
    """The table from its columns as the page gives them: kind, type, `desc` behind it."""
    columns: dict[str, Column] = {}
    for name, text in example.expected["columns"].items():
        kind, type_text = text.removesuffix(" desc").split(" ", 1)
        place = sum(column.kind == kind for column in columns.values()) if kind in ("partition_key", "clustering") else -1
        columns[name] = Column(name, kind, type_text, place, text.endswith(" desc"))
    keyspace, name = example.words[1].split(".")
    return Table(keyspace, name, table_id, columns)
