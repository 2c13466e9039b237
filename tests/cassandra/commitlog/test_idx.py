"""The index of a segment, complete and half-written."""

from __future__ import annotations

import pytest

from tests.cassandra.commitlog.packed import KEYS, PACKINGS, small_packed
from writetime.cassandra.commitlog.idx import CdcIndex, State, parse, state, stop_at
from writetime.cassandra.commitlog.segment import Ending, scan


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"1443737", CdcIndex(1_443_737, completed=False)),
        (b"1443737\nCOMPLETED", CdcIndex(1_443_737, completed=True)),
        (b"0", CdcIndex(0, completed=False)),
        (b"", None),
        (b"\n", None),
        (b"1443737\nCOMPL", None),
        (b"COMPLETED", None),
        (b"12 34", None),
        (b"-5", None),
        ("١".encode(), None),
    ],
)
def test_parse(content: bytes, expected: CdcIndex | None) -> None:
    assert parse(content) == expected


@pytest.mark.parametrize(
    ("content", "expected", "stop"),
    [
        (None, State.ABSENT, None),
        (b"", State.EMPTY, None),
        (b"1443737\nCOMP", State.CUT, None),
        (b"1443737", State.GROWING, 1_443_737),
        (b"14437", State.GROWING, 14_437),
        (b"1443737\nCOMPLETED", State.COMPLETED, None),
        (b"1443736\nCOMPLETED", State.OFF, None),
        (b"99999999\nCOMPLETED", State.OFF, None),
    ],
)
def test_states(content: bytes | None, expected: State, stop: int | None) -> None:
    assert state(content, 1_443_737) is expected
    assert stop_at(content) == stop


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("said", [0, 20, 100, 10**9])
def test_after_a_crash_the_sections_count(packing: str, said: int) -> None:
    """The position of a completed segment is too low or too high: everything is read."""
    packed = small_packed(packing)
    content = b"%d\nCOMPLETED" % said
    found = scan(packed.file, synced=stop_at(content), keys=KEYS)
    assert (len(found.frames), found.problems, found.ending) == (6, [], Ending.END_OF_FILE)
    assert state(content, found.end) is State.OFF


@pytest.mark.parametrize("packing", PACKINGS)
def test_while_it_grows_nothing_behind_its_position_is_read(packing: str) -> None:
    packed = small_packed(packing)
    found = scan(packed.file, synced=stop_at(b"%d" % packed.logical[3]), keys=KEYS)
    assert (len(found.frames), found.problems, found.ending) == (4, [], Ending.GROWING)
    assert state(b"%d" % packed.logical[3], found.end) is State.GROWING
