"""Classification of files in cdc_raw, as a table, and changes of the folder while it is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from shippers.folder import Entry, State, classify, look
from tests.shippers.conftest import Folder
from writetime.errors import ShipError

LOG = Entry("CommitLog-7-100.log")


def idx(content: bytes, number: int = 100) -> Entry:
    return Entry(f"CommitLog-7-{number}_cdc.idx", idx=content)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([LOG], State.PREALLOCATED),
        ([LOG, idx(b"")], State.GROWING),
        ([LOG, idx(b"53")], State.GROWING),
        ([LOG, idx(b"533995\n")], State.GROWING),
        ([LOG, idx(b"533995\nCOMPL")], State.GROWING),
        ([LOG, idx(b"\nCOMPLETED")], State.GROWING),
        ([LOG, idx(b"COMPLETED")], State.GROWING),
        ([LOG, idx(b"12\nCOMPLETEDX")], State.GROWING),
        ([LOG, idx(b"533995\nCOMPLETED")], State.COMPLETED),
        ([LOG, idx(b"533995\nCOMPLETED\n")], State.COMPLETED),
        ([idx(b"533995\nCOMPLETED")], State.LEFTOVER_IDX),
        ([idx(b"533995")], State.FOREIGN),
        ([idx(b"")], State.FOREIGN),
        ([LOG, Entry("CommitLog-7-100_cdc.idx", trouble="failed to read the file: Permission denied")], State.UNREADABLE),
        ([Entry("CommitLog-7-100_cdc.idx", trouble="failed to read the file: Permission denied")], State.FOREIGN),
        ([Entry("CommitLog-6-100.log")], State.MOVED_IN),
        ([Entry("CommitLog-7-100.log", regular=False)], State.FOREIGN),
        ([Entry("commitlog-7-100.log")], State.FOREIGN),
        ([Entry("CommitLog-7-100.log.bak")], State.FOREIGN),
        ([Entry("notes.log")], State.FOREIGN),
        ([Entry("subfolder", regular=False)], State.FOREIGN),
    ],
)
def test_one_segment(entries: list[Entry], expected: State) -> None:
    (found,) = classify(entries)
    assert found.state is expected
    assert (found.segment is None) == (expected is State.FOREIGN)
    assert bool(found.reason) == (expected in (State.FOREIGN, State.UNREADABLE))


def test_segments_come_oldest_first_whatever_their_names() -> None:
    entries = [Entry("zzz"), *(Entry(f"CommitLog-{v}-{n}.log") for v, n in ((7, 1000), (8, 2), (7, 30))), Entry("aaa")]
    assert [f.name for f in classify(entries)] == ["CommitLog-8-2.log", "CommitLog-7-30.log", "CommitLog-7-1000.log", "aaa", "zzz"]


def test_an_empty_folder() -> None:
    assert classify([]) == []


def test_looking(folder: Folder) -> None:
    folder.segment(2)
    folder.segment(1, idx=None)
    (folder.path / "CommitLog-7-3_cdc.idx").mkdir()
    (folder.path / "CommitLog-7-4.log").symlink_to(folder.path / "CommitLog-7-2.log")
    found = {f.name: f.state for f in classify(look(folder.path))}
    assert found == {
        "CommitLog-7-1.log": State.PREALLOCATED,
        "CommitLog-7-2.log": State.COMPLETED,
        "CommitLog-7-3_cdc.idx": State.FOREIGN,
        "CommitLog-7-4.log": State.FOREIGN,
    }


def test_an_idx_that_vanishes_while_looking(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.segment(1)

    def vanish(path: Path) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr("shippers.folder.read_idx", vanish)
    assert look(folder.path) == [Entry("CommitLog-7-1.log")]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ShipError, match=r"node\.cdc_raw"):
        look(tmp_path / "nowhere")
