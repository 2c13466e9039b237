"""The index beside a segment, whole and half-written."""

from __future__ import annotations

import pytest

from writetime.commitlog.idx import CdcIndex, parse


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
