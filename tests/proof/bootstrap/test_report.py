"""What a consumer holds, and how a difference is printed, without a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proof.bootstrap import topics
from proof.bootstrap.report import differences, report
from proof.bootstrap.run import Result
from proof.bootstrap.topics import compared, consumed
from proof.ring.answer import Row, TableAnswer
from proof.ring.check import Mismatch
from writetime.events.naming import to_column

Record = tuple[int, bytes | None, bytes | None]


def record(key: int, after: dict[str, Any] | None) -> Record:
    return 0, json.dumps({"pk": key}).encode(), json.dumps({"after": after}).encode()


def test_a_consumer_holds_the_last_row_of_each_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [record(1, {"pk": 1, "v": "a"}), record(2, {"pk": 2}), record(1, {"pk": 1, "v": "b"}), record(3, {"pk": 3}), (0, None, None)]
    sent += [record(2, None), (0, json.dumps({"pk": 3}).encode(), None)]
    monkeypatch.setattr(topics, "committed", lambda *_: iter(sent))
    assert list(consumed("", "").values()) == [{"pk": 1, "v": "b"}]


def test_values_of_events_are_compared_with_those_of_the_cluster() -> None:
    row = {"pk": 1, "m": [["x", 1]], to_column("Odd name"): "00ff", "n": None}
    table = TableAnswer("live", "wide", "id", ["pk"], {"[1]": Row("[1]", row), "[2]": Row("[2]", {"pk": 2})})
    after = {"pk": 1, "m": {"x": 1}, "Odd name": "AP8=", "n": None}
    (missing,) = compared(table, {b"1": after}, "")
    assert (missing.check, missing.key, missing.ring, missing.ours) == ("topic", "[2]", {"pk": 2}, None)
    changed, twice = {**after, "m": {"x": 2}}, {**after, "pk": 2, "m": None, "Odd name": None}
    (found,) = compared(table, {b"1": changed, b"2": {"pk": 2}}, "")
    assert (found.column, found.ring, found.ours) == ("m", [["x", 1]], [["x", 2]])
    assert [each.ours for each in compared(table, {b"1": after, b"2": {"pk": 2}, b"3": twice}, "")] == ["two, under two record keys"]


def test_a_difference_is_printed_with_all_three_values(capsys: pytest.CaptureFixture[str]) -> None:
    of_table = Mismatch("table", "after `first`", "live.counts", "[3, 4]", "c", 18, 36)
    of_topic = Mismatch("topic", "after `first`", "live.counts", "[3, 4]", "c", 18, 20)
    alone = Mismatch("topic", "after `first`", "live.counts", "[3, 5]", "c", 1, 2)
    other = Mismatch("account", "batch 3", "*", ring=1, ours=2)
    lines = differences([of_table, of_topic, alone, other])
    assert "✗ after `first`: live.counts [3, 4] c: cluster 18, table 36, consumer 20" in lines
    assert "✗ after `first`: live.counts [3, 5] c: cluster 1, table equal, consumer 2" in lines
    assert len(lines) == 3
    assert report(Result(mismatches=[other]), 0)
    assert report(Result(), 1), "too few kills"
    assert not report(Result(), 0)
    assert "only 0 of 1 kills" in capsys.readouterr().out
