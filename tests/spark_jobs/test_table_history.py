"""Which snapshot is a table after a batch, from made-up commits; the statement of docs/history.md says the same (test_history.py)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from spark_jobs import table_history
from spark_jobs.sinks.iceberg_table import Kept
from spark_jobs.table_history import Found, after, of_main, states
from writetime import cli
from writetime.config import pipeline

START = datetime(2026, 5, 4, tzinfo=UTC)


def commit(number: int, parent: int | None, *, batch: int | None = None, step: str | None = "rows") -> Kept:
    """A commit with that id, at that second."""
    summary = {"writetime.batch": str(batch), **({"writetime.step": step} if step else {})} if batch else {"operation": "replace"}
    return Kept(number, parent, parent is not None, summary, START + timedelta(seconds=number))


def found(kept: list[Kept], lineage: list[int], logged: set[int], batch: int) -> Found:
    by_id = {each.id: each for each in kept}
    return after(states(of_main(kept, [by_id[number] for number in lineage], logged)), batch)


def test_a_branch_is_no_history() -> None:
    kept = [commit(1, None, batch=1), commit(2, 1), commit(3, 2), commit(4, 1, batch=2), commit(5, 4)]
    for batch, expected in ((1, Found(snapshot=1, exact=True)), (2, Found(snapshot=5, exact=True)), (9, Found(snapshot=5, exact=True))):
        assert found(kept, [5, 4, 1], {1, 4, 5}, batch) == expected
    assert found(kept, [5, 4, 1], {1, 4, 5}, 0) == Found(snapshot=None, exact=False)


def test_before_a_gap_only_what_names_its_batch_is_mains() -> None:
    """Snapshot 4 has expired; 2 and 3 may be a branch's, or a compaction."""
    kept = [commit(1, None, batch=1), commit(2, 1), commit(3, 2), commit(5, 4, batch=5), commit(6, 5, batch=6)]
    assert [each.id for each in of_main(kept, [kept[4], kept[3]], {5, 6})] == [1, 5, 6]
    assert found(kept, [6, 5], {5, 6}, 1) == Found(snapshot=1, exact=True)
    assert found(kept, [6, 5], {5, 6}, 3) == Found(snapshot=1, exact=False), "of a batch between nobody knows"
    assert found(kept, [6, 5], {5, 6}, 5) == Found(snapshot=5, exact=True)


def test_what_was_rolled_back_is_no_history() -> None:
    kept = [commit(1, None, batch=1), commit(2, 1, batch=2), commit(3, 1, batch=3)]
    assert [each.snapshot for each in states(of_main(kept, [kept[2], kept[0]], {1, 2, 3}))] == [1, 3]


def test_a_step_before_the_rows_is_not_the_table_after_the_batch() -> None:
    kept = [commit(1, None, batch=1), commit(2, 1, batch=2, step="dropped"), commit(4, 3, batch=4)]
    assert found(kept, [4], {4}, 2) == Found(snapshot=2, exact=False)


def test_the_command_prints_snapshots_with_their_batches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    point = EntryPoint("history", "spark_jobs.commands:history", cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda *, group: [point] if group == cli.GROUP else [])
    monkeypatch.setattr(pipeline, "load", lambda _: SimpleNamespace())
    kept = [commit(1, None, batch=1), commit(3, 2), commit(5, 3, batch=5)]
    monkeypatch.setattr(table_history, "run", lambda _, name: {"shop.orders": states(kept)}[name])
    assert cli.main(["history", "shop.orders", "--config", "pipeline.yaml"]) == 0
    said = [line.split()[:4] for line in capsys.readouterr().out.splitlines()]
    assert said == [["batch", "1", "snapshot", "1"], ["batch", "-", "snapshot", "3"], ["batch", "5", "snapshot", "5"]]
    assert cli.main(["history", "shop.orders", "--batch", "5", "--config", "pipeline.yaml"]) == 0
    assert capsys.readouterr().out == "5\n"
    assert cli.main(["history", "shop.orders", "--batch", "3", "--config", "pipeline.yaml"]) == 1
    assert capsys.readouterr().out == "none; the last one before: 1\n"
    assert cli.main(["history", "shop.orders", "--json", "--batch", "0", "--config", "pipeline.yaml"]) == 1
    assert capsys.readouterr().out == '{"snapshot":null,"exact":false}\n'
