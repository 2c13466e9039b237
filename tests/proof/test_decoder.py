"""The proof that `make test-decoder` gives, on a small recorded scale: that it finds nothing where all is
well, and something where not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proof.decoder import compare
from proof.decoder.packed import SETTINGS, Packed, recordings

Lines = list[dict[str, Any]]


def recorded(name: str) -> Packed:
    return next(recording for recording in recordings() if recording.name == name)


@pytest.fixture(scope="module")
def truth() -> Lines:
    return recorded("5.0.6-v8-Zstd").truth()


def swap(lines: Lines) -> None:
    lines[3], lines[4] = lines[4], lines[3]


def repeat(lines: Lines) -> None:
    lines.append(lines[-1])


def change_a_cell(lines: Lines) -> None:
    rows = (row for line in reversed(lines) for update in line["updates"] for row in update["rows"])
    next(row for row in rows if row["cells"])["cells"][0]["value"] += "00"


def forget_a_deletion(lines: Lines) -> None:
    del next(update for line in lines for update in line["updates"] if "rts" in update)["rts"]


@pytest.mark.parametrize("spoil", [swap, repeat, change_a_cell, forget_a_deletion, list.pop])
def test_every_difference_is_found(truth: Lines, spoil: Callable[[Lines], object]) -> None:
    spoilt = copy.deepcopy(truth)
    spoil(spoilt)
    assert list(compare.between(truth, truth)) == []
    assert len(list(compare.between(truth, spoilt))) == 1
    assert len(list(compare.between(spoilt, truth))) == 1


def test_every_version_and_codec_is_proved() -> None:
    cases = [(case.version[:3], case.descriptor, case.codec) for case in compare.cases()]
    packed = {"plain", "LZ4", "Snappy", "Deflate", "Zstd", "encrypted"}
    for version, descriptor in (("4.0", 7), ("4.1", 7), ("5.0", 7), ("5.0", 8), ("6.0", 7), ("6.0", 9)):
        assert packed <= {codec for *where, codec in cases if where == [version, descriptor]}
    assert len(set(cases)) == len(cases)


@pytest.mark.cassandra
def test_a_recorded_case_has_no_differences(tmp_path: Path) -> None:
    """All readers at once, Cassandra's own among them, on encrypted segments."""
    recording = recorded("5.0.6-v7-encrypted")
    recording.stage(tmp_path / "copy")
    settings = json.loads((recording.path / SETTINGS).read_text(encoding="utf-8"))
    settings["transparent_data_encryption_options"]["key_provider"][0]["parameters"][0]["keystore"] = str(recording.keystore)
    (tmp_path / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / "keystore").write_bytes((recording.path / "keystore").read_bytes())
    result = compare.compare(compare.Case("5.0.6", 7, compare.ENCRYPTED), "recorded", tmp_path / "copy", tmp_path)
    assert result.examples == []
    assert (result.differences, result.unknown) == (0, 0)
    assert result.mutations == len(recording.truth()) > 1000
