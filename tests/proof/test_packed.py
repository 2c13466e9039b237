"""Segments that real nodes compressed and encrypted, against what Cassandra's own reader made of them: no
node is needed for that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proof.decoder.packed import Packed, recordings
from writetime import cli
from writetime.cassandra.commitlog.encryption.keystore import PASSWORD_VARIABLE, Keystore
from writetime.cassandra.commitlog.mutation_json import Failure, decode, learn
from writetime.cassandra.commitlog.segment import Ending, scan
from writetime.cassandra.schema.history import SchemaLearner
from writetime.errors import UnsupportedSegment
from writetime.kernels.mutation_columns import unflatten
from writetime.kernels.mutation_decoder import decode as decode_to_cells

RECORDINGS = recordings()
each_recording = pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)


def test_every_way_of_packing_is_there() -> None:
    assert {recording.name.rpartition("-")[2] for recording in RECORDINGS} == {"LZ4", "Snappy", "Deflate", "Zstd", "encrypted"}
    assert {recording.keystore.read_bytes()[:1] for recording in RECORDINGS if recording.keystore} == {b"\xce", b"\x30"}


@each_recording
def test_they_are_read_as_cassandra_reads_them(
    recording: Packed, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recording.stage(tmp_path)
    command = ["dump", "--json", "--all-tables", "--strict", str(tmp_path)]
    if recording.keystore is not None:
        command += ["--keystore", str(recording.keystore)]
        monkeypatch.setenv(PASSWORD_VARIABLE, recording.password)
    code = cli.main(command)
    told = capsys.readouterr()
    assert code == 0, told.err
    assert [json.loads(line) for line in told.out.splitlines()] == recording.truth()


@each_recording
def test_both_decoders_read_the_same(recording: Packed, tmp_path: Path) -> None:
    keys = None if recording.keystore is None else Keystore.open(recording.keystore, recording.password)
    scans = [scan(path.read_bytes(), name=path.name, keys=keys) for path in recording.stage(tmp_path)]
    assert {(found.descriptor.codec is None, found.ending) for found in scans} == {(False, Ending.END_OF_FILE)}
    learner = SchemaLearner()
    assert [failure for found in scans for failure in learn(found, learner)] == []
    schema = learner.schema()
    for found in scans:
        readable = {frame.position: told for frame, told in decode(found, schema) if not isinstance(told, Failure)}
        chunks = decode_to_cells(found.image, found.frames, schema, version=found.descriptor.version, engine="numba")
        assert dict(pair for chunk in chunks for pair in unflatten(chunk)) == readable


@pytest.mark.parametrize("recording", [recording for recording in RECORDINGS if recording.keystore], ids=lambda recording: recording.name)
def test_encrypted_ones_need_their_key(recording: Packed, tmp_path: Path) -> None:
    path = recording.stage(tmp_path)[0]
    with pytest.raises(UnsupportedSegment):
        scan(path.read_bytes(), name=path.name)
