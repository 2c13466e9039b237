"""A table that cannot be compared is reported by name, and the others are compared; no ring, no Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from spark_jobs.bootstrap import Bootstrap
from spark_jobs.stages.table_rows import EXPIRES_AT, WRITETIME
from spark_jobs.verify import Look, Options, Plan, Rows, Subject, Verification
from tests.storage.memory import MemoryStore
from writetime.cassandra.schema.model import Column, ColumnKind, Schema, Table
from writetime.cassandra.types.native import NATIVE
from writetime.config.cluster import CqlConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchError, StoreUnavailable
from writetime.events.masking import Rules
from writetime.pipeline import verification
from writetime.pipeline.verification import Shown, TableResult

FAILURES = [
    BatchError("no such column", operation="read rows"),
    PySparkException("Traceback …\nwritetime.errors.BatchError: read rows: InvalidRequest: undefined column name column1"),
    RuntimeError("anything"),
    RecursionError(),
    MemoryError(),
    pa.ArrowInvalid("bad"),
]
GOOD, BAD = (Table("k", name, UUID(int=number), {}) for number, name in enumerate(("good", "bad"), start=1))


@pytest.fixture
def verification_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Verification of two tables, of which one raises `error` at that step."""

    def made(step: str, error: Exception) -> Verification:
        found = object.__new__(Verification)
        look = Look(0, None, SimpleNamespace(logged=0))  # type: ignore[arg-type]
        found.config = SimpleNamespace(snapshot=SimpleNamespace(consistency="ALL"))  # type: ignore[assignment]
        found.store, found.cluster, found.options, found.cql = MemoryStore(), "c", Options(wait=1), CqlConfig(contact_points=["h"])
        found.schema = Schema(tables={GOOD.id: GOOD, BAD.id: BAD})
        done: dict[str, Any] = {
            "_subject": lambda table, _: Subject(table, table.name, SimpleNamespace(ranges=[]), [look]),  # type: ignore[arg-type]
            "_again": lambda subject: look,
            "_counted": lambda subject: TableResult(table=subject.table.full_name, table_id=subject.table.id, snapshot=1),
        }
        for name, works in done.items():

            def raising(about: Any, *rest: Any, name: str = name, works: Any = works) -> Any:
                if name == step and (about == BAD or getattr(about, "table", None) == BAD):
                    raise error
                return works(about, *rest)

            monkeypatch.setattr(found, name, raising, raising=False)
        found._logged = 0
        monkeypatch.setattr(found, "_horizon", lambda table: SimpleNamespace(logged=9))
        again: list[UUID] = []
        doubtful = lambda subject: not subject.trouble and again.count(subject.table.id) == 0 and not again.append(subject.table.id)  # noqa: E731
        monkeypatch.setattr("spark_jobs.verify._doubtful", doubtful)
        return found

    return made


@pytest.mark.parametrize("step", ["_subject", "_again", "_counted"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_table_that_cannot_be_compared_leaves_the_others(verification_of: Any, step: str, error: Exception) -> None:
    bad, good = verification_of(step, error)._compared([(BAD, None), (GOOD, None)])
    assert (bad.table, bool(bad.trouble), bad.snapshot) == ("k.bad", True, None)
    assert (good.table, good.trouble, good.snapshot) == ("k.good", "", 1)


@pytest.mark.parametrize("step", ["_subject", "_again", "_counted"])
def test_an_outage_of_the_store_is_no_tables_fault(verification_of: Any, step: str) -> None:
    with pytest.raises(StoreUnavailable):
        verification_of(step, StoreUnavailable("no route", operation="read an object"))._compared([(BAD, None), (GOOD, None)])


# --- tables WITH COMPACT STORAGE

Kind = tuple[str, ColumnKind, str]


def compact(flags: set[str], *columns: Kind) -> Table:
    named = {name: Column(name, kind, of, 0 if "key" in kind or kind == "clustering" else -1) for name, kind, of in columns}
    return Table("b", "t", UUID(int=9), named, flags=frozenset(flags))


STATIC = compact(
    set(), ("k", "partition_key", "text"), ("column1", "clustering", "text"), ("v", "static", "int"), ("value", "regular", "blob")
)
DENSE = compact({"dense", "compound"}, ("p", "partition_key", "int"), ("c", "clustering", "int"), ("value", "regular", "empty"))


def test_what_cql_does_not_show_is_not_asked_for() -> None:
    assert Rows(STATIC, Schema(), True).selection.columns == '"k", "v", WRITETIME("v"), TTL("v"), toUnixTimestamp(now())'
    assert Rows(DENSE, Schema(), True).selection.columns == '"p", "c", toUnixTimestamp(now())'


def ours(table: Table, row: dict[str, Any], writetime: dict[str, int]) -> dict[str, Any]:
    config = PipelineConfig.model_validate({"pipeline": "p", "cluster": {"name": "c", "datacenters": ["dc1"]}, "bucket": "b"})
    plan = Plan(config, CqlConfig(contact_points=["h"]), table, Schema(), [(-(2**63), 2**63 - 1)], of_elements=True)
    stored = {**row, WRITETIME: list(writetime.items()), EXPIRES_AT: []}
    kinds = {str: pa.string(), int: pa.int32(), bytes: pa.binary(), list: pa.map_(pa.string(), pa.int64()), type(None): pa.string()}
    batch = pa.RecordBatch.from_pylist([stored], schema=pa.schema([(name, kinds[type(value)]) for name, value in stored.items()]))
    read = batch.select(plan.columns(batch.schema.names))
    assert plan.compared(read.schema.names).columns == {"v"} & table.columns.keys()
    (found,) = Rows(table, Schema(), True, Rules()).of_lake(read, plan.ranges, {0})
    return found


ONE = NATIVE["int"].encode(1)
COMPACT: list[tuple[Table, tuple[bytes | None, ...], dict[str, Any], dict[str, int]]] = [
    (STATIC, (b"k1", ONE, NATIVE["bigint"].encode(5), None, b""), {"k": "k1", "column1": None, "v": 1, "value": None}, {"v": 5}),
    (DENSE, (ONE, ONE, b""), {"p": 1, "c": 1, "value": b""}, {"value": 5}),
]
"""A table, the cluster's answer, and the warehouse's row with writetimes."""


@pytest.mark.parametrize(("table", "answer", "row", "writetime"), COMPACT, ids=["static", "dense"])
def test_rows_of_compact_tables_compare_as_equal(table: Table, answer: Any, row: dict[str, Any], writetime: dict[str, int]) -> None:
    found = Rows(table, Schema(), True, Rules()).answered(answer, 1000)
    assert found is not None
    lake = ours(table, row, writetime)
    assert (found[0], found[1]) == (lake["key"], lake["token"])
    compared = verification.Compared(frozenset({"v"} & table.columns.keys()))
    assert verification.differences(compared, found[2], Shown.from_bytes(lake["row"]), 1000) == []


@pytest.mark.parametrize("table", [STATIC, DENSE], ids=["static", "dense"])
def test_a_reading_names_a_table_of_which_cql_hides_columns(table: Table) -> None:
    """What its answer lacks would count as deleted."""
    with pytest.raises(BatchError, match=r"COMPACT STORAGE.*b\.t|b\.t.*COMPACT STORAGE"):
        object.__new__(Bootstrap)._plan(table)
