"""The recording is what its README says: small, intact, finished, and the same on all replicas."""

from __future__ import annotations

import hashlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from proof.recording.recording import Recording
from writetime.cassandra.commitlog import idx
from writetime.cassandra.commitlog.segment import peek, scan

MOST_BYTES = 3 * 2**20


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.open()


@pytest.fixture(scope="module")
def staged(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return recording.stage(tmp_path_factory.mktemp("staged"))


def test_is_small_enough_for_a_repository(recording: Recording) -> None:
    assert sum(path.stat().st_size for path in recording.path.rglob("*") if path.is_file()) <= MOST_BYTES


def test_three_nodes_know_who_they_are(recording: Recording) -> None:
    nodes = recording.nodes
    assert [node.address for node in nodes] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert len({node.host_id for node in nodes}) == len({node.tokens for node in nodes}) == 3
    assert {node.datacenter for node in nodes} == {"dc1"}


def test_files_are_staged_with_their_bytes_and_times(recording: Recording, staged: dict[str, Path]) -> None:
    for node in recording.nodes:
        folder = staged[node.host_id]
        assert {path.name for path in folder.iterdir()} == {file.name for file in node.files}
        for file in node.files:
            path = folder / file.name
            assert hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256, path
            assert (path.stat().st_size, path.stat().st_mtime_ns) == (file.size, file.mtime_ns)


def test_every_segment_is_finished_and_undamaged(staged: dict[str, Path]) -> None:
    for folder in staged.values():
        logs = sorted(folder.glob("*.log"))
        assert len(logs) >= 2
        for log in logs:
            index = idx.parse(log.with_name(f"{log.stem}_cdc.idx").read_bytes())
            found = scan(log.read_bytes(), name=log.name)
            assert index == idx.CdcIndex(found.end, completed=True)
            assert found.frames
            assert not found.problems


def test_replicas_hold_the_same_captured_mutations_in_different_orders(recording: Recording, staged: dict[str, Path]) -> None:
    first, second, third = (captured_mutations(recording, folder) for folder in staged.values())
    assert len(first) == recording.document["captured_mutations"] > 1000
    assert Counter(first) == Counter(second) == Counter(third)
    assert first != second
    assert first != third


def test_the_log_tells_its_own_schema(recording: Recording, staged: dict[str, Path]) -> None:
    """DDL precedes the first mutation of each captured table on at least one node, so that nothing but the
    log is needed."""
    assert any(_ddl_comes_first(recording, folder) for folder in staged.values())


def test_answers_have_a_row_per_line_and_writetimes_for_what_is_there(recording: Recording) -> None:
    assert recording.cdc_tables == [("shop", "customers"), ("shop", "orders")]
    for keyspace, table in recording.tables:
        rows = recording.answer(keyspace, table)
        assert len(rows) == recording.document["tables"][f"{keyspace}.{table}"]["rows"] > 0
        keys = _primary_key(recording, table)
        for row in rows:
            present = {column for column, value in row["values"].items() if value is not None}
            assert set(row["writetime"]) == present - keys
            assert set(row["ttl"]) <= set(row["writetime"])


def test_what_still_has_a_ttl_lives_for_years(recording: Recording) -> None:
    """So that a comparison with the answer is exact whenever it is made."""
    in_five_years = datetime(2031, 11, 21, tzinfo=UTC).timestamp()
    ttls = [ttl for keyspace, table in recording.tables for row in recording.answer(keyspace, table) for ttl in row["ttl"].values()]
    seconds = [second for ttl in ttls for second in (ttl if isinstance(ttl, list) else [ttl]) if second is not None]
    assert seconds
    assert min(seconds) + recording.read_at("shop", "orders") > in_five_years


def captured_mutations(recording: Recording, folder: Path) -> list[bytes]:
    """Bytes of the mutations that touch a captured table, in the order of the log."""
    captured = {_table_id(recording, table) for _, table in recording.cdc_tables}
    ours = {_table_id(recording, table) for _, table in recording.tables}
    found = []
    for body in _bodies(folder):
        count, table_id, _ = peek(body, version=7)
        # No batch of the workload is without a captured table, even if another one comes first in it.
        if table_id in captured or (count > 1 and table_id in ours):
            found.append(body)
    return found


def _ddl_comes_first(recording: Recording, folder: Path) -> bool:
    """Whether every captured table's id is seen inside a mutation of another table before its own first
    mutation."""
    waiting = {_table_id(recording, table) for _, table in recording.cdc_tables}
    for body in _bodies(folder):
        _, table_id, _ = peek(body, version=7)
        if table_id in waiting:
            return False
        waiting = {wanted for wanted in waiting if wanted.bytes not in body}
    return not waiting


def _bodies(folder: Path) -> list[bytes]:
    """Bodies of all frames of a node, by segment id and position."""
    bodies = []
    for log in sorted(folder.glob("*.log"), key=lambda path: int(path.stem.rpartition("-")[2])):
        content = log.read_bytes()
        bodies += [content[frame.body_offset : frame.body_offset + frame.body_length] for frame in scan(content, name=log.name).frames]
    return bodies


def _table_id(recording: Recording, table: str) -> UUID:
    rows = recording.schema_snapshot["tables"]
    return UUID(next(row["id"] for row in rows if (row["keyspace_name"], row["table_name"]) == ("shop", table)))


def _primary_key(recording: Recording, table: str) -> set[str]:
    rows = recording.schema_snapshot["columns"]
    ours = [row for row in rows if (row["keyspace_name"], row["table_name"]) == ("shop", table)]
    return {row["column_name"] for row in ours if row["kind"] in ("partition_key", "clustering")}
