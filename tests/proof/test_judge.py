"""Cassandra's own reader, asked by way of the judge, agrees with us on the recorded ring; and says so where a
segment is damaged."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from proof.recording.recording import Recording
from tests.cassandra.commitlog.dump import dump_lines
from writetime.cassandra.commitlog import redact
from writetime.cassandra.commitlog.segment import scan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one node of the recorded ring left."""
    return sorted(Recording.open().stage(tmp_path_factory.mktemp("judge")).values())[0]


@pytest.mark.cassandra
def test_cassandra_reads_the_recorded_ring_as_we_do(folder: Path) -> None:
    from proof.decoder.judge import Judge

    segments = sorted(folder.glob("*.log"))
    ours = [json.loads(line) for line in dump_lines([(path.name, path.read_bytes()) for path in segments]) if isinstance(line, str)]
    found = Judge().dump(folder)
    assert not found.problems
    assert found.lines == ours
    assert len(ours) > 1000


@pytest.mark.cassandra
def test_damage_is_told_and_the_rest_is_read(folder: Path, tmp_path: Path) -> None:
    from proof.decoder.judge import Judge

    path = sorted(folder.glob("*.log"))[0]
    content = path.read_bytes()
    frames = scan(content, name=path.name).frames
    bodies = [content[frame.body_offset :][: frame.body_length] for frame in frames]
    damaged = bytearray(content)
    damaged[frames[40].body_offset] ^= 1
    (tmp_path / path.name).write_bytes(damaged)
    with Judge().each(folder) as read:
        whole, rest = read(path), read(tmp_path / path.name)
    assert [line["crc"] for line in whole.lines] == [zlib.crc32(body) for body in bodies]
    assert [problem["reason"] for problem in rest.problems] == ["MUTATION_ERROR"]
    assert [line["pos"] for line in rest.lines] == [frame.position for frame in frames if frame != frames[40]]


@pytest.mark.cassandra
def test_cassandra_reads_what_is_left_of_a_segment_from_which_mutations_were_cut(folder: Path, tmp_path: Path) -> None:
    """Single frames go, and nine in a row; all else is delivered at its position, without a complaint."""
    from proof.decoder.judge import Judge

    path = sorted(folder.glob("*.log"))[0]
    before = scan(path.read_bytes(), name=path.name)
    gone = {*range(0, len(before.frames), 3), *range(20, 29)}
    made = redact.without(before, dict.fromkeys(gone, b""))
    kept = [(frame.position, zlib.crc32(before.body(frame))) for number, frame in enumerate(before.frames) if number not in gone]
    (tmp_path / path.name).write_bytes(made)
    with Judge().each(folder) as read:
        found = read(tmp_path / path.name)
    assert found.problems == []
    assert [(line["pos"], line["crc"]) for line in found.lines] == kept
