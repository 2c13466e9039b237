"""What `Warehouse` does on the double's catalog in memory, and on Spark and Iceberg in a folder: the same.

Strategy: each case runs on both. What several drivers do is a sequence of calls, each between others as a scheduler may
order them; `Meanwhile` is a fence that lets another driver act between a table's loading and the commit. At the end
random sequences of calls are played on the double alone, and compared with a model of two dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql.pandas.types import from_arrow_schema

from proof.doubles.warehouse import Catalog, DoubleEvents, DoubleWarehouse, state_unknown
from spark_jobs.failures import kind_of
from spark_jobs.session import spark_session
from spark_jobs.sinks.batch_files import Events
from spark_jobs.sinks.changes_files import Wanted
from spark_jobs.sinks.iceberg import Fence, TableWrite, Warehouse
from spark_jobs.sinks.schema_evolution import Steps
from spark_jobs.stages.event_pages import PAGES
from tests.spark_jobs.examples import NOW, THEN, delete, folded, frame, insert, of_kind, paged, schema_of, table
from tests.spark_jobs.pipeline import Pipeline
from tests.storage.memory import MemoryStore
from writetime.cassandra.schema.model import Table
from writetime.errors import BatchBusy, BatchClosed, BatchError
from writetime.pipeline.complete_tables import CompleteTable
from writetime.pipeline.documents import Chain, Sealed
from writetime.pipeline.identity import Owner
from writetime.pipeline.planner import seal
from writetime.pipeline.quarantine.kinds import QuarantineKind
from writetime.pipeline.quarantine.record import QuarantineRecord
from writetime.storage.local import LocalStore
from writetime.storage.store import Store

pytestmark = pytest.mark.timeout(600)
LATER = datetime(2100, 1, 1, tzinfo=UTC)
_NUMBERS = count(1)
_PAGES: dict[str, list[dict[str, Any]]] = {}


@dataclass
class Place:
    """A catalog, and what tests ask of it. `session`: what a warehouse gets for a Spark session; `lake`: the catalog, if
    that is one."""

    session: Any
    lake: SqlCatalog | None = None

    @property
    def is_double(self) -> bool:
        return isinstance(self.session, Catalog)

    def warehouse(self, **options: Any) -> Warehouse:
        return (DoubleWarehouse if self.is_double else Warehouse)(self.session, "lake", **options)

    def events(self, pages: Sequence[Mapping[str, Any]]) -> Any:
        if self.is_double:
            return DoubleEvents.of_pages(pages)
        rows = pa.Table.from_pylist([dict(page) for page in pages], schema=PAGES)
        return Events.of_pages(self.session.createDataFrame(rows, schema=from_arrow_schema(PAGES)))

    def rows(self, name: str) -> list[dict[str, Any]]:
        if self.is_double:
            return [dict(row) for row in self.warehouse().tables.rows(f"`lake`.{name}").collect()]
        # A scan of Spark takes half a second.
        assert self.lake is not None
        found: list[dict[str, Any]] = self.lake.load_table(name.replace("`", "")).scan().to_arrow().to_pylist(maps_as_pydicts="strict")
        return found

    def held(self, name: str) -> Any:
        found = self.warehouse().tables.find(f"`lake`.{name}")
        assert found is not None
        return found

    def changes(self, of: Table) -> list[tuple[Any, ...]]:
        """Batch, ordinal, operation, key and new value of all events."""
        found = self.rows(f"`shop__changes`.`{of.name}`")
        return sorted((row["batch"], row["ordinal"], row["op"], row["key"]["id"], _value(row["after"])) for row in found)

    def current(self, of: Table) -> dict[int, Any]:
        found = self.rows(f"`shop`.`{of.name}`")
        assert all(row["_writetime"].keys() <= {"v"} and row["_expires_at"] == {} for row in found)
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: row["v"] for row in found}

    def commits(self, of: Table, namespace: str = "shop") -> list[tuple[str, ...]]:
        """Operation, batch and step of the kept snapshots."""
        names = ("operation", "writetime.batch", "writetime.step")
        return [tuple(each.get(name, "") for name in names) for each in self.held(f"`{namespace}`.`{of.name}`").summaries]

    def compact(self, name: str) -> None:
        if self.is_double:
            self.held(name).rewrite_files()
        else:
            options = "map('rewrite-all', 'true')"
            plain = name.replace("`", "")
            self.session.sql(f"CALL lake.system.rewrite_data_files(table => '{plain}', options => {options})").collect()

    def expire(self, name: str, keep: int = 1, gone: Iterable[int] = ()) -> None:
        self.held(name).expire(LATER, keep, gone)


def _value(row: Any) -> Any:
    return None if row is None else row["v"]


@pytest.fixture(scope="module")
def in_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    pipeline = Pipeline.create(tmp_path_factory.mktemp("conformance"))
    session = spark_session(pipeline.config, "conformance of the warehouse's double")
    yield Place(session, SqlCatalog("lake", uri=f"sqlite:///{pipeline.site.catalog}", **pipeline.site.lake))
    session.stop()


def catalog(**options: Any) -> Catalog:
    ticks = count()
    return Catalog(lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(ticks)), **options)


IN_SHORT = pytest.mark.parametrize("place", ["double", pytest.param("spark", marks=pytest.mark.spark)], indirect=True)
"""A case that the quick suite runs on Spark too."""


@pytest.fixture(params=["double", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.thorough])])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "double":
        return Place(catalog())
    found: Place = request.getfixturevalue("in_a_folder")
    return found


# --- batches


def made() -> Table:
    """A table of a name that no other case has."""
    number = next(_NUMBERS)
    return table(f"t{number}", (0x1000 + number) << 96, {"id": "int", "v": "int"})


def pages(of: Table, rows: Mapping[int, int | None], at: int = 0) -> list[dict[str, Any]]:
    """Events of rows that are written (their values), or written and deleted (None), `at` some time, as one batch."""
    if (cached := _PAGES.get(what := repr((of, rows, at)))) is not None:
        return cached
    schema = schema_of(of)
    found = []
    for key, v in rows.items():
        if v is None:
            found += [insert(of, key, {"v": 0}, timestamp=THEN + 10 * at, schema=schema), delete(of, key, THEN + 10 * at + 5)]
        else:
            found += [insert(of, key, {"v": v}, timestamp=THEN + 10 * at, schema=schema)]
    return _PAGES.setdefault(what, paged(of_kind(folded([frame(each, schema=schema) for each in found], schema), "event"), schema))


class Driver:
    """One run of a batch with rows of one table, step by step."""

    def __init__(self, place: Place, of: Table, batch: int, rows: Mapping[int, int | None], *, only: str = "", **options: Any) -> None:
        self.place, self.table, self.batch, self.only = place, of, batch, only
        self.warehouse = place.warehouse(**{"batch_id": UUID(int=batch), **options})
        self.events = place.events(pages(of, rows, batch))
        self._write: TableWrite | None = None

    def open(self) -> Driver:
        current: Any = None if self.only == "changes" else "merged"
        self._write = self.warehouse.open(self.table, schema_of(self.table), self.batch, changes=self.only != "current", current=current)
        return self

    def write(self) -> Driver:
        assert self._write is not None
        with self.warehouse.fenced(self.batch):
            if self._write.is_by_tasks:
                self.warehouse.write_files([self._write], [self.events], self.batch)
        return self

    def commit_changes(self) -> Driver:
        assert self._write is not None
        if self._write.changes is not None:
            self.warehouse.commit_changes(self._write, self.events, self.batch)
        return self

    def commit_current(self) -> Driver:
        assert self._write is not None
        if self._write.current is not None:
            self.warehouse.commit_current(self._write, self.events, self.batch)
        return self

    def ready(self) -> Driver:
        return self.open().write()

    def commit(self) -> Driver:
        return self.commit_changes().commit_current()

    def run(self) -> Driver:
        return self.ready().commit()


def outcome(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - it is what is compared
        return type(error).__name__
    return "done"


def sealed(store: Store, number: int) -> None:
    seal(store, "c", Sealed(number=number, kind="ingest", sealed_at=datetime.now(UTC), segments=[], accounting=[], state={}))


@dataclass(frozen=True, slots=True)
class Meanwhile(Fence):
    """At its checks of the fence, which come between load and commit, others act: each of them once, the first at once."""

    acts: tuple[Callable[[], Any], ...] = ()
    done: Any = None

    def check(self, batch: int) -> None:
        Fence.check(self, batch)
        if len(self.done) < len(self.acts):
            self.done.append(batch)
            self.acts[len(self.done) - 1]()


def others(*acts: Callable[[], Any]) -> Fence:
    return Meanwhile(MemoryStore(), "c", 0, acts, [])


def test_a_batch_and_the_same_attempt_again(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10, 2: 20}).run()
    for _ in range(2):
        Driver(place, of, 2, {1: 11, 3: 30, 4: None}).run()
        assert place.current(of) == {1: 11, 2: 20, 3: 30}
        assert [each[:1] + each[2:] for each in place.changes(of)] == [
            *[(1, "c", 1, 10), (1, "c", 2, 20)],
            *[(2, "c", 1, 11), (2, "c", 3, 30), (2, "c", 4, 0), (2, "d", 4, None)],
        ]
    held = place.held(f"`shop`.`{of.name}`")
    assert [("", *each[1:]) for each in place.commits(of)] == [("", "1", "rows"), ("", "2", "rows")]
    assert [each[1] for each in place.commits(of, "shop__changes")] == ["1", "2", "2"]
    assert (held.rows, held.files.data, held.files.deletes) == (3, 2, 1)
    assert [each.summary["writetime.batch-id"] for each in held.lineage] == [str(UUID(int=2)), str(UUID(int=1))]
    assert [each.has_parent for each in held.lineage] == [True, False]
    assert place.warehouse().seen() >= 2


@IN_SHORT
def test_operations_are_called_as_by_iceberg(place: Place) -> None:
    of = made()
    for batch, rows in enumerate([{1: 10}, {2: 20}, {2: 21}], start=1):
        Driver(place, of, batch, rows).run()
    Driver(place, of, 3, {2: 21}).run()
    assert [each[0] for each in place.commits(of)] == ["overwrite", "append", "overwrite"]
    assert [each[0] for each in place.commits(of, "shop__changes")] == ["append", "append", "append", "overwrite"]
    place.warehouse().empty_current(of, 4)
    place.warehouse().take_back(of, 3)
    assert (place.commits(of)[-1], place.commits(of, "shop__changes")[-1]) == (("delete", "4", "rows"), ("delete", "3", ""))
    assert (place.current(of), len(place.changes(of))) == ({}, 2)


@pytest.mark.parametrize("before", ["open", "write", "changes", "current"])
def test_an_attempt_after_the_seal(place: Place, tmp_path: Path, before: str) -> None:
    # Tasks look there too.
    of, store = made(), LocalStore(tmp_path)
    Driver(place, of, 1, {1: 10}).run()
    late = Driver(place, of, 2, {1: 99}, fence=Fence(store, "c"))
    steps = {"open": late.open, "write": late.write, "changes": late.commit_changes, "current": late.commit_current}
    for name, step in steps.items():
        if name == before:
            Driver(place, of, 2, {1: 11}).run()
            sealed(store, 2)
            with pytest.raises(BatchClosed):
                step()
            break
        step()
    assert place.current(of) == {1: 11}
    assert [each[4] for each in place.changes(of)] == [10, 11]


# Of two drivers of a batch, both with their files, one commits first; the later is told in the second column.
SECOND = {
    # The table is empty: what the other has put there is in conflict.
    (1, "changes"): "BatchBusy",
    (1, "current"): "BatchBusy",
    (2, "changes"): "BatchBusy",
    (2, "current"): "BatchBusy",
}


@pytest.mark.parametrize(("batch", "only"), SECOND)
def test_two_drivers_of_a_batch_commit_one_after_the_other(place: Place, batch: int, only: Literal["changes", "current"]) -> None:
    of = made()
    if batch > 1:
        Driver(place, of, 1, {1: 10, 2: 20}).run()
    rows = {1: 11, 3: 30}
    first, second = (Driver(place, of, batch, rows, only=only).ready() for _ in range(2))
    first.commit()
    assert outcome(second.commit) == SECOND[batch, only]
    # Which tries again, and finds what the other has done.
    Driver(place, of, batch, rows, only=only).run()
    if only == "changes":
        assert [each[4] for each in place.changes(of) if each[0] == batch] == [11, 30]
    else:
        assert place.current(of) == ({1: 10, 2: 20} if batch > 1 else {}) | rows


@IN_SHORT
def test_two_drivers_of_a_batch_that_an_earlier_attempt_has_begun(place: Place) -> None:
    of = made()
    for batch, rows in ((1, {1: 10}), (2, {1: 11, 2: 21})):
        Driver(place, of, batch, rows, only="changes").run()
    first, second = (Driver(place, of, 2, {1: 11, 3: 31}, only="changes").ready() for _ in range(2))
    first.commit()
    assert outcome(second.commit) == "BatchBusy"
    assert [each[4] for each in place.changes(of)] == [10, 11, 31]


def test_one_driver_opens_when_the_other_has_committed(place: Place) -> None:
    of = made()
    first, second = (Driver(place, of, 1, {1: 10}) for _ in range(2))
    first.ready().commit_changes()
    second.ready()
    first.commit_current()
    second.commit_changes()
    assert outcome(second.commit_current) == "BatchBusy"
    second.run()
    assert (place.current(of), len(place.changes(of))) == ({1: 10}, 1)


@IN_SHORT
def test_a_late_driver_finds_rows_of_a_later_batch(place: Place) -> None:
    """Without a seal that would stop it: `batch_id` is what does."""
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    late = Driver(place, of, 2, {1: 11}).ready()
    Driver(place, of, 2, {1: 11}).run()
    Driver(place, of, 3, {1: 12}).run()
    assert [outcome(late.commit_changes), outcome(late.commit_current)] == ["BatchBusy", "BatchBusy"]
    assert outcome(Driver(place, of, 2, {1: 11}).open) == "ChainMismatch"
    assert place.current(of) == {1: 12}


@IN_SHORT
@pytest.mark.parametrize("there", ["nothing", "attempt", "expired"])
def test_a_late_driver_without_earlier_commits_in_sight_finds_rows_of_a_later_batch(place: Place, there: str) -> None:
    of, batch = made(), 1
    if there == "attempt":
        Driver(place, of, batch, {1: 10}, only="changes").run()
    elif there == "expired":
        batch = 2
        Driver(place, of, 1, {1: 9}, only="changes").run()
        place.compact(f"`shop__changes`.`{of.name}`")
        place.expire(f"`shop__changes`.`{of.name}`")
    late = Driver(place, of, batch, {1: 10}, only="changes").ready()
    voided(place, batch + 1).take_back_voided(of, {batch: UUID(int=batch)}, batch + 1)
    Driver(place, of, batch + 1, {1: 10}, only="changes").run()
    assert outcome(late.commit_changes) == "BatchBusy"
    assert [each[0] for each in place.changes(of)] == ([1, 3] if there == "expired" else [2])


def test_files_that_compaction_has_merged_are_replaced_row_by_row(place: Place) -> None:
    of = made()
    for batch, rows in ((1, {1: 10}), (2, {1: 11, 2: 21}), (2, {1: 11, 3: 31})):
        if (batch, rows) == (2, {1: 11, 3: 31}):
            place.compact(f"`shop__changes`.`{of.name}`")
        Driver(place, of, batch, rows, only="changes").run()
    assert [each[:2] + each[4:] for each in place.changes(of)] == [(1, 1, 10), (2, 1, 11), (2, 2, 31)]
    place.compact(f"`shop__changes`.`{of.name}`")
    place.warehouse(batch_id=UUID(int=2)).take_back(of, 2)
    assert [each[0] for each in place.changes(of)] == [1]


@IN_SHORT
def test_a_compaction_between_look_and_commit(place: Place) -> None:
    """Positions of rows are those of files that are gone; events that are only added do not mind."""
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    Driver(place, of, 2, {2: 20}).run()
    late = Driver(place, of, 3, {1: 11}).ready()
    for namespace in ("shop", "shop__changes"):
        place.compact(f"`{namespace}`.`{of.name}`")
    assert [outcome(late.commit_changes), outcome(late.commit_current)] == ["done", "BatchBusy"]
    assert outcome(Driver(place, of, 3, {1: 11}).run) == "done"
    assert place.current(of) == {1: 11, 2: 20}


# --- chains


CHAIN = Chain(id=UUID(int=0xC), first=5, generation=1)


@pytest.mark.parametrize(
    ("batch", "batch_id", "chain", "expected"),
    [
        (3, 3, None, "done"),
        (3, 33, None, "done"),
        (2, 2, None, "done"),
        (2, 22, None, "ChainMismatch"),
        (1, 1, None, "ChainMismatch"),
        (5, 5, CHAIN, "done"),
        # Its first batch is not above what is there.
        (2, 2, CHAIN.model_copy(update={"first": 2}), "ChainMismatch"),
    ],
)
def test_a_batch_of_another_chain(place: Place, batch: int, batch_id: int, chain: Chain | None, expected: str) -> None:
    of = made()
    for earlier in (1, 2):
        Driver(place, of, earlier, {1: earlier}).run()
    assert outcome(Driver(place, of, batch, {1: 99}, batch_id=UUID(int=batch_id), chain=chain).open) == expected
    assert place.current(of) == {1: 2}


@IN_SHORT
def test_a_chain_replaces_everything_and_the_former_one_is_stopped(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    Driver(place, of, 2, {2: 20}).run()
    late = Driver(place, of, 3, {3: 30}).ready()
    first = Driver(place, of, 5, {1: 11}, chain=CHAIN).ready()
    for _ in range(2):
        first.commit()
        first = Driver(place, of, 5, {1: 11}, chain=CHAIN).ready()
    assert (place.current(of), [each[0] for each in place.changes(of)]) == ({1: 11}, [5])
    assert [outcome(late.commit_changes), outcome(late.commit_current)] == ["BatchBusy", "BatchBusy"]
    assert outcome(Driver(place, of, 3, {3: 30}).open) == "ChainMismatch"
    # The chain goes on; what its own late driver says counts, and what is known by the table's properties alone.
    Driver(place, of, 6, {2: 21}, chain=CHAIN).run()
    assert place.current(of) == {1: 11, 2: 21}
    for namespace in ("shop", "shop__changes"):
        # What compaction leaves names no chain.
        place.compact(f"`{namespace}`.`{of.name}`")
        place.expire(f"`{namespace}`.`{of.name}`")
    assert outcome(Driver(place, of, 7, {3: 30}).open) == "ChainMismatch"
    assert outcome(Driver(place, of, 7, {3: 30}, chain=CHAIN).run) == "done"


def test_a_former_chain_that_takes_a_table_over_late_replaces_nothing(place: Place) -> None:
    """A driver was suspended between its last look at the rebuild and the catalog's answer, and another rebuild has begun."""
    of, later = made(), Chain(id=UUID(int=0xD), first=7, generation=2)
    Driver(place, of, 1, {1: 10}).run()
    Driver(place, of, 7, {1: 12}, chain=later).run()
    late = place.warehouse(batch_id=UUID(int=5), chain=CHAIN)
    for name in (late.changes_of(of), late.current_of(of)):
        late._take_over(late.tables.load(name or ""), 5)
    Driver(place, of, 8, {2: 21}, chain=later).run()
    assert (place.current(of), [each[0] for each in place.changes(of)]) == ({1: 12, 2: 21}, [7, 8])


def test_the_former_chains_driver_commits_before_the_new_one(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    first = Driver(place, of, 5, {1: 11}, chain=CHAIN).ready()
    Driver(place, of, 2, {2: 20}).run()
    assert [outcome(first.commit_changes), outcome(first.commit_current)] == ["BatchBusy", "BatchBusy"]
    Driver(place, of, 5, {1: 11}, chain=CHAIN).run()
    assert (place.current(of), [each[0] for each in place.changes(of)]) == ({1: 11}, [5])


def test_two_drivers_of_a_chains_first_batch(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    first, second = (Driver(place, of, 5, {1: 11}, chain=CHAIN).ready() for _ in range(2))
    first.commit()
    assert [outcome(second.commit_changes), outcome(second.commit_current)] == ["BatchBusy", "BatchBusy"]
    second.run()
    assert (place.current(of), [each[0] for each in place.changes(of)]) == ({1: 11}, [5])


@IN_SHORT
def test_what_a_former_chain_left_is_cleared_once(place: Place) -> None:
    of, untouched = made(), made()
    Driver(place, of, 1, {1: 10}).run()
    Driver(place, untouched, 1, {1: 10}).run()
    Driver(place, of, 5, {1: 11}, chain=CHAIN).run()
    for _ in range(2):
        for each in (of, untouched):
            place.warehouse(batch_id=UUID(int=5), chain=CHAIN).clear_former(each, 5)
    assert (place.current(of), place.current(untouched), place.changes(untouched)) == ({1: 11}, {}, [])
    assert place.commits(untouched)[-1] == ("delete", "5", "")
    assert outcome(Driver(place, untouched, 2, {1: 10}).open) == "ChainMismatch"


# --- voids


def voided(place: Place, batch: int, **options: Any) -> Warehouse:
    return place.warehouse(**{"batch_id": UUID(int=batch), **options})


VOID = {2: UUID(int=2)}


@IN_SHORT
def test_a_voided_batch_is_taken_back(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    Driver(place, of, 2, {1: 11, 2: 20}).run()
    warehouse, schema = voided(place, 3), schema_of(of)
    assert not warehouse.is_settled(of, VOID, 3)
    assert len(warehouse.take_back_voided(of, VOID, 3)) == 2
    assert (place.current(of), [each[0] for each in place.changes(of)]) == ({1: 10}, [1])
    assert warehouse.is_settled(of, VOID, 3)
    assert warehouse.take_back_voided(of, VOID, 3) == []
    # The next one goes on from there, and is found again.
    Driver(place, of, 3, {2: 21}).run()
    Driver(place, of, 3, {2: 21}).run()
    assert place.current(of) == {1: 10, 2: 21}
    assert place.commits(of, "shop__changes")[2] == ("delete", "3", "void")
    warehouse.follow(of, schema, 3)
    assert [each[1] for each in place.commits(of)] == ["1", "2", "3"]


@IN_SHORT
@pytest.mark.parametrize("only", ["changes", "current"])
def test_what_a_voided_batch_commits_after_the_look_is_found(place: Place, only: str) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    late = Driver(place, of, 2, {1: 11}, only=only).ready()
    warehouse = voided(place, 3)
    assert warehouse.take_back_voided(of, VOID, 3) == []
    late.commit()
    assert not warehouse.is_settled(of, VOID, 3)
    Driver(place, of, 3, {2: 20}).run()
    assert not warehouse.is_settled(of, VOID, 3)
    warehouse.take_back_voided(of, VOID, 3)
    Driver(place, of, 3, {2: 20}).run()
    assert warehouse.is_settled(of, VOID, 3)
    assert (place.current(of), [each[0] for each in place.changes(of)]) == ({1: 10, 2: 20}, [1, 3])


def test_a_voided_batch_that_was_the_first_leaves_nothing(place: Place) -> None:
    of = made()
    Driver(place, of, 2, {1: 10}).run()
    voided(place, 3).take_back_voided(of, VOID, 3)
    assert place.held(f"`shop`.`{of.name}`").snapshot is None
    assert (place.current(of), place.changes(of)) == ({}, [])
    Driver(place, of, 3, {2: 20}).run()
    assert place.current(of) == {2: 20}
    assert place.warehouse().open_changes(of) is not None


@pytest.mark.parametrize("case", ["rows of this batch above", "rows of another above", "compacted above", "snapshot expired", "another id"])
def test_what_stands_above_a_voided_batch(place: Place, case: str) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    Driver(place, of, 2, {1: 11}, batch_id=UUID(int=22) if case == "another id" else UUID(int=2)).run()
    name = f"`shop`.`{of.name}`"
    warehouse = voided(place, 4)
    if case == "rows of another above":
        Driver(place, of, 3, {1: 12}, only="current").run()
    elif case == "rows of this batch above":
        Driver(place, of, 4, {1: 12}, only="current").run()
    elif case == "compacted above":
        place.compact(name)
    elif case == "snapshot expired":
        place.expire(name, keep=1)
    if case in ("rows of another above", "snapshot expired"):
        with pytest.raises(BatchError, match="rows of batch 3 stand above" if "another" in case else "has expired"):
            warehouse.take_back_voided(of, VOID, 4)
        assert not warehouse.is_settled(of, VOID, 4)
        return
    warehouse.take_back_voided(of, VOID, 4)
    assert place.current(of) == {1: 11 if case == "another id" else 10}
    # What this batch had above them was rolled back with them: it runs again.
    assert warehouse.is_settled(of, VOID, 4) == (case != "rows of this batch above")


@pytest.mark.parametrize("step", ["before the check", "after the check"])
def test_a_roll_back_races_a_commit(place: Place, step: str) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    Driver(place, of, 2, {1: 11}, only="current").run()
    late = Driver(place, of, 2, {1: 11, 2: 21}, only="current", batch_id=None)
    rival = Driver(place, of, 3, {3: 30}, only="current").ready()
    if step == "before the check":
        rival.commit()
        warehouse = voided(place, 4)
        with pytest.raises(BatchError, match="rows of batch 3 stand above"):
            warehouse.take_back_voided(of, VOID, 4)
    else:
        warehouse = voided(place, 4, fence=others(rival.commit))
        with pytest.raises(BatchBusy, match="concurrent write"):
            warehouse.take_back_voided(of, VOID, 4)
    assert place.current(of) == {1: 11, 3: 30}
    assert late.open()._write is not None


@IN_SHORT
def test_a_commit_that_was_planned_before_a_roll_back(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    Driver(place, of, 2, {1: 11}).run()
    late = Driver(place, of, 3, {1: 12}).ready()
    voided(place, 3).take_back_voided(of, VOID, 3)
    assert [outcome(late.commit_changes), outcome(late.commit_current)] == [PLANNED_BEFORE, "BatchBusy"]
    Driver(place, of, 3, {1: 12}).run()
    assert (place.current(of), [each[0] for each in place.changes(of)]) == ({1: 12}, [1, 3])


PLANNED_BEFORE = "done"
"""Events are removed by a commit that adds none: what only adds is not in conflict with that."""


def test_a_roll_back_to_nothing_under_a_commit(place: Place) -> None:
    of = made()
    Driver(place, of, 2, {1: 11}).run()
    late = Driver(place, of, 3, {1: 12}, only="current").ready()
    voided(place, 3).take_back_voided(of, VOID, 3)
    assert outcome(late.commit) == "done"
    assert place.current(of) == {1: 12}


# --- what an attempt left, and what is known


@IN_SHORT
def test_what_an_attempt_told_is_taken_back(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    Driver(place, of, 2, {1: 11}, only="changes").run()
    warehouse = place.warehouse(batch_id=UUID(int=2))
    for _ in range(2):
        warehouse.take_back(of, 2)
        assert [each[0] for each in place.changes(of)] == [1]
    # Another run commits between the look and the removal.
    Driver(place, of, 2, {1: 11}, only="changes").run()
    rival = Driver(place, of, 2, {1: 11}, only="changes").ready()
    with pytest.raises(BatchBusy):
        place.warehouse(batch_id=UUID(int=2), fence=others(rival.commit)).take_back(of, 2)


@IN_SHORT
def test_the_highest_batch_is_seen_when_its_snapshots_have_expired(place: Place) -> None:
    of, mine = made(), Owner(cluster="c", pipeline="p", id=UUID(int=next(_NUMBERS)))
    theirs = replace(made(), keyspace="theirs")
    for batch in (1, 2, 70):
        Driver(place, of, batch, {1: batch}, owner=mine).run()
    Driver(place, theirs, 99, {1: 1}, owner=mine.model_copy(update={"id": UUID(int=0xF)})).run()
    warehouse = place.warehouse(owner=mine)
    assert _seen_of(warehouse, of) == 70
    for namespace in ("shop", "shop__changes"):
        name = f"`{namespace}`.`{of.name}`"
        place.compact(name)
        place.expire(name)
        assert not place.held(name).summaries[0].get("writetime.batch")
    assert _seen_of(warehouse, of) == 70
    assert "belongs to pipeline p" in (warehouse.rejection_reason(theirs) or "")


def _seen_of(warehouse: Warehouse, of: Table) -> int:
    """The highest batch in this table only: all cases share a catalog."""
    own = warehouse._own_tables
    warehouse._own_tables = lambda: (name for name in own() if of.name in name)  # type: ignore[method-assign]
    try:
        return warehouse.seen()
    finally:
        warehouse._own_tables = own  # type: ignore[method-assign]


@IN_SHORT
def test_changes_as_publishers_open_them(place: Place) -> None:
    of = made()
    assert place.warehouse().open_changes(of) is None
    for batch in (1, 2, 3):
        Driver(place, of, batch, {batch: batch}, only="changes").run()
    warehouse = place.warehouse()
    changes = warehouse.open_changes(of, [2])
    assert changes is not None
    assert sorted(row["batch"] for row in changes.rows.collect()) == [1, 3]
    assert (warehouse.key_names(of), len(changes.versions)) == (("id",), 1)
    # A commit after that is not seen.
    Driver(place, of, 4, {4: 4}, only="changes").run()
    files = changes.files(1, 4)
    assert files is not None
    wanted = Wanted(str(of.id), 1, 4, frozenset([2]), frozenset(), 1, 4)
    spans, events = files.spans(wanted)
    assert [(span.first, span.last, span.in_order) for span in spans] == [((3, 1), (3, 1), True)]
    assert events == {3: 1}
    (rows,) = files.read(spans[0].path, wanted)
    assert [(row["batch"], row["key"], row["op"]) for row in rows.to_pylist()] == [(3, {"id": 3}, "c")]


# --- tables created again


def test_a_table_is_created_again(place: Place) -> None:
    old = made()
    new = replace(old, id=UUID(int=next(_NUMBERS)))
    Driver(place, old, 1, {1: 10}).run()
    Driver(place, new, 2, {2: 20}).run()
    assert place.current(new) == {2: 20}
    aside = f"{old.name}__{old.id.hex[:8]}"
    assert [row["v"] for row in place.rows(f"`shop`.`{aside}`")] == [10]
    warehouse = place.warehouse()
    assert (warehouse.changes_of(old), warehouse.changes_of(new)) == (
        f"`lake`.`shop__changes`.`{aside}`",
        f"`lake`.`shop__changes`.`{old.name}`",
    )
    changes = warehouse.open_changes(old)
    assert changes is not None
    assert [row["batch"] for row in changes.rows.collect()] == [1]


@pytest.mark.parametrize("at", ["looked at", "renamed", "created"])
def test_two_drivers_create_a_table_again(place: Place, at: str) -> None:
    """One of them is at this step when the other does all of it."""
    old = made()
    new = replace(old, id=UUID(int=next(_NUMBERS)))
    Driver(place, old, 1, {1: 10}).run()
    first, second = (Driver(place, new, 2, {2: 20}, only="current") for _ in range(2))
    tables = second.warehouse.tables
    step = {"looked at": "rename", "renamed": "find", "created": "create"}[at]
    real, calls = getattr(tables, step), []

    def paused(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            first.run()
        return real(*arguments)

    setattr(tables, step, paused)
    assert outcome(second.run) == {"looked at": "BatchBusy", "renamed": "done", "created": "BatchBusy"}[at]
    Driver(place, new, 2, {2: 20}, only="current").run()
    assert place.current(new) == {2: 20}


@IN_SHORT
def test_a_table_that_was_loaded_is_created_again(place: Place) -> None:
    """What was loaded before is refreshed after: another table has the name."""
    old = made()
    new = replace(old, id=UUID(int=next(_NUMBERS)))
    Driver(place, old, 1, {1: 10}).run()
    late = Driver(place, old, 1, {1: 11}, only="changes").ready()
    Driver(place, new, 2, {2: 20}).run()
    assert outcome(late.commit) == "BatchBusy"
    assert [each[0] for each in place.changes(new)] == [2]


def test_a_table_that_was_loaded_is_renamed(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    late = Driver(place, of, 2, {1: 11}, only="changes").ready()
    place.warehouse().tables.rename(f"`lake`.`shop__changes`.`{of.name}`", "shop__changes", f"{of.name}__aside")
    assert outcome(late.commit) == "BatchBusy"


@IN_SHORT
def test_columns_are_added_by_two(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    columns = table(of.name, of.id.int, {"id": "int", "v": "int", "w": "text"})
    rival = Driver(place, replace(of, columns=columns.columns), 2, {1: 11})
    late = Driver(place, replace(of, columns=columns.columns), 2, {1: 11}, fence=others(rival.open))
    assert outcome(late.open) == "BatchBusy"
    Driver(place, rival.table, 2, {1: 11}).run()
    assert [(row["id"], row["v"], row["w"]) for row in place.rows(f"`shop`.`{of.name}`")] == [(1, 11, None)]


def test_properties_are_set_on_top_of_a_commit_that_came_between(place: Place) -> None:
    of = made()
    Driver(place, of, 1, {1: 10}).run()
    rival = Driver(place, of, 2, {2: 20}, only="current").ready()
    place.held(f"`shop`.`{of.name}`").evolve(Steps(), {"comment": "ours"}, rival.commit)
    assert (place.held(f"`shop`.`{of.name}`").properties["comment"], place.current(of)) == ("ours", {1: 10, 2: 20})


# --- tables of all pipelines


def test_quarantine_records_and_their_void(place: Place) -> None:
    def record(cluster: str, number: int, batch: int, settled_in: int | None = None) -> QuarantineRecord:
        return QuarantineRecord(
            f"record {number}", cluster, QuarantineKind.UNKNOWN_TABLE, "boo", 5, batch, NOW, settled_in=settled_in, segment="s"
        )

    ours, theirs = (f"q{next(_NUMBERS)}" for _ in range(2))
    warehouse = place.warehouse(batch_id=UUID(int=1))
    warehouse.write_quarantine([record(ours, 1, 1), record(ours, 2, 1)], 1)
    warehouse.write_quarantine([record(theirs, 1, 2)], 2)
    place.warehouse(batch_id=UUID(int=2)).write_quarantine([record(ours, 1, 1, settled_in=2), record(ours, 3, 2)], 2)

    def found(cluster: str) -> list[tuple[Any, ...]]:
        rows = place.rows("`_writetime`.`quarantine`")
        return sorted((row["name"], row["batch"], row["settled_in"]) for row in rows if row["cluster"] == cluster)

    assert found(ours) == [("record 1", 1, 2), ("record 2", 1, None), ("record 3", 2, None)]
    following, void = place.warehouse(batch_id=UUID(int=3)), {2: UUID(int=2)}
    assert not following.has_settled_records(void)
    following.take_back_voided_records(ours, void, 3)
    assert following.has_settled_records(void)
    assert found(ours) == [("record 1", 1, None), ("record 2", 1, None)]
    assert found(theirs) == [("record 1", 2, None)]


def test_completeness_goes_on_only(place: Place) -> None:
    cluster, other = (f"k{next(_NUMBERS)}" for _ in range(2))

    def until(seconds: int, of: str = cluster) -> list[CompleteTable]:
        at = datetime.fromtimestamp(NOW + seconds, UTC)
        return [CompleteTable(of, "shop.t", "t", at, at, None, seconds)]

    for each in (until(10), until(5, other), until(20), until(15)):
        place.warehouse().write_completeness(each)
    rows = place.rows("`_writetime`.`completeness`")
    assert {row["cluster"]: row["batch"] for row in rows if row["cluster"] in (cluster, other)} == {cluster: 20, other: 5}


# --- the double alone


def test_steps_are_before_requests_and_leave_the_catalog_consistent() -> None:
    """A driver may end at each of them; another one finishes."""

    class Killed(BaseException):
        pass

    def run(dies_at: int | None) -> tuple[int, Any]:
        shared, steps = catalog(), list[str]()
        place, of = Place(shared), table("killed", 7 << 96, {"id": "int", "v": "int"})
        Driver(place, of, 1, {1: 10}).run()

        def step(what: str) -> None:
            steps.append(what)
            if len(steps) == dies_at:
                raise Killed

        shared.step = step
        driver = Driver(place, of, 2, {1: 11, 2: 20})
        if dies_at is None:
            driver.run()
        else:
            with pytest.raises(Killed):
                driver.run()
        shared.step = lambda _: None
        Driver(place, of, 2, {1: 11, 2: 20}).run()
        assert place.current(of) == {1: 11, 2: 20}
        assert [each[:1] + each[4:] for each in place.changes(of)] == [(1, 10), (2, 11), (2, 20)]
        return len(steps), steps

    number, steps = run(None)
    assert {"warehouse: load shop.killed", "warehouse: commit shop__changes.killed", "warehouse: a task writes files"} <= {*steps}
    for at in range(1, number + 1):
        run(at)


def test_an_answer_is_lost() -> None:
    def lose(what: str) -> None:
        if what.startswith("warehouse: commit shop."):
            raise state_unknown()

    shared, of = catalog(), made()
    place = Place(shared)
    driver = Driver(place, of, 1, {1: 10}).ready().commit_changes()
    shared.answered = lose
    with pytest.raises(Exception, match="CommitStateUnknown") as raised:
        driver.commit_current()
    assert kind_of(raised.value) == "world"
    shared.answered = lambda _: None
    Driver(place, of, 1, {1: 10}).run()
    assert (place.current(of), len(place.commits(of))) == ({1: 10}, 1)


def test_a_commit_is_made_again_on_top_of_one_that_came_between() -> None:
    """Between refresh and commit: two batches' events of a table, of which each only adds, do not exclude each other... but
    one that looked at the table before does not know the other's."""
    shared, of = catalog(), made()
    place = Place(shared)
    Driver(place, of, 1, {1: 10}, only="current").run()
    late = place.warehouse(batch_id=UUID(int=2))
    rival = Driver(place, of, 2, {2: 20}, only="current").ready()
    waiting = [rival.commit]

    def step(what: str) -> None:
        if what.startswith("warehouse: commit") and waiting:
            waiting.pop()()

    shared.step = step
    late.empty_current(of, 3)
    assert place.commits(of)[-2:] == [("append", "2", "rows"), ("delete", "3", "rows")]
    assert place.current(of) == {}


def test_equal_histories_are_equal_states() -> None:
    def after(*batches: int, other: bool = False) -> Any:
        shared, of = catalog(), table("state", 9 << 96, {"id": "int", "v": "int"})
        if other:
            # Which uses numbers up.
            Driver(Place(shared), of, 1, {1: 1}).ready()
        for batch in batches:
            Driver(Place(shared), of, batch, {1: batch}).run()
        return shared.state()

    assert after(1, 2) == after(1, 2, other=True)
    assert len({after(1), after(1, 2), after(1, 1), after(1, 2, 3)}) == 4


@pytest.mark.parametrize("by_tasks", [True, False])
def test_both_roads_write_the_same(by_tasks: bool) -> None:
    place, of = Place(catalog(by_tasks=by_tasks)), made()
    batches: list[dict[int, int | None]] = [{1: 10, 2: 20}, {1: 11, 3: 30, 4: None}, {2: None}]
    for batch, rows in enumerate(batches, start=1):
        for _ in range(2):
            Driver(place, of, batch, rows).run()
    assert place.current(of) == {1: 11, 3: 30}
    assert [(each[0], each[3]) for each in place.changes(of)] == [(1, 1), (1, 2), (2, 1), (2, 3), (2, 4), (2, 4), (3, 2), (3, 2)]


class Machine(RuleBasedStateMachine):
    """Batches of one table, run, begun, overtaken, voided, taken back and rebuilt, against two dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.table, self.store = Place(catalog()), table("random", 8 << 96, {"id": "int", "v": "int"}), MemoryStore()
        self.number = 1
        self.chain: Chain | None = None
        self.changes: dict[int, dict[int, int | None]] = {}
        self.before: dict[int, int] = {}
        self.late: list[Driver] = []
        self.voided: dict[int, UUID | None] = {}
        self.rows: dict[int, int | None] = {1: 1}

    def _driver(self) -> Driver:
        fence = Fence(self.store, "c")
        return Driver(self.place, self.table, self.number, self.rows, fence=fence, chain=self.chain)

    def _finish(self) -> None:
        sealed(self.store, self.number)
        self.number += 1

    @rule(rows=st.dictionaries(st.integers(1, 4), st.integers(0, 9), min_size=1), attempts=st.integers(1, 3), begun=st.booleans())
    def a_batch(self, rows: dict[int, int | None], attempts: int, begun: bool) -> None:
        self.rows = rows
        self._settle()
        if begun:
            self.late.append(self._driver().ready())
        for _ in range(attempts):
            self._driver().run()
        if self.voided.keys():
            assert self.place.warehouse(batch_id=UUID(int=self.number)).is_settled(self.table, self.voided, self.number)
        if self.chain is not None and self.number == self.chain.first:
            self.changes, self.before = {}, {}
        self.changes[self.number] = rows
        self.before |= {key: v for key, v in rows.items() if v is not None}
        self._finish()
        self._check()

    @rule(rows=st.dictionaries(st.integers(1, 4), st.integers(0, 9), min_size=1), how=st.sampled_from(["changes", "both"]))
    def a_voided_batch(self, rows: dict[int, int | None], how: str) -> None:
        self.rows = rows
        self._settle()
        driver = self._driver().ready().commit_changes()
        if how == "both":
            driver.commit_current()
        self.late.append(driver)
        self.voided[self.number] = UUID(int=self.number)
        self._finish()

    @rule(kept=st.booleans())
    def a_late_driver_goes_on(self, kept: bool) -> None:
        if self.late and not self.voided:
            driver = self.late[-1] if kept else self.late.pop()
            assert {outcome(driver.commit_changes), outcome(driver.commit_current), outcome(driver.run)} == {"BatchClosed"}
            self._check()

    @rule()
    def a_rebuild(self) -> None:
        if not self.voided:
            self.chain = Chain(id=UUID(int=self.number << 32), first=self.number, generation=1)
            self.a_batch({1: self.number}, 1, False)

    @rule(keep=st.integers(1, 3))
    def snapshots_expire(self, keep: int) -> None:
        if self.changes and not self.voided:
            for namespace in ("shop", "shop__changes"):
                self.place.expire(f"`{namespace}`.`random`", keep)
            self._check()

    @rule()
    def files_are_merged(self) -> None:
        if self.changes and not self.voided:
            for namespace in ("shop", "shop__changes"):
                self.place.compact(f"`{namespace}`.`random`")
            self._check()

    def _settle(self) -> None:
        if self.voided:
            warehouse = self.place.warehouse(batch_id=UUID(int=self.number), chain=self.chain)
            warehouse.take_back_voided(self.table, self.voided, self.number)
            assert warehouse.is_settled(self.table, self.voided, self.number)
            self._check()
            self.voided = {}

    def _check(self) -> None:
        if not self.changes:
            return
        assert self.place.current(self.table) == self.before
        found = [(batch, key) for batch, _, _, key, _ in self.place.changes(self.table)]
        assert sorted(found) == sorted((batch, key) for batch, rows in self.changes.items() for key in rows)
        last = max(self.changes)
        assert self.place.warehouse().seen() >= last


def test_random_sequences_against_a_model() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=25, stateful_step_count=10))
