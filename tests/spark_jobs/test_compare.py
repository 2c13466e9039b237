"""A replay into a namespace of its own: the archive's hours, folded from nothing, beside tables and batches
that stay as they are."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from spark_jobs import ingest
from spark_jobs.session import spark_session
from tests.spark_jobs.synthetic import CLUSTER, START, Ring, delete_row, folded, insert, update
from tools import ROOT
from writetime.events.naming import to_changes_namespace, to_namespace
from writetime.pipeline.documents import Sealed
from writetime.pipeline.planner import plan_replay
from writetime.storage import layout

pytestmark = pytest.mark.thorough


def replayed(ring: Ring, hours: int) -> Sealed:
    """The first so many hours of the archive, folded into `check`."""
    hour = START.replace(minute=0, second=0, microsecond=0)
    manifest = plan_replay(
        ring.store, CLUSTER, start=hour, end=hour + hours * timedelta(hours=1), now=START + timedelta(hours=9), namespace="check"
    )
    assert manifest is not None
    return ingest.run(ring.config.shadow("check"), manifest.number)


def table(ring: Ring, namespace: str) -> list[dict[str, Any]]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{ring.folder / 'lake' / 'catalog.db'}")
    rows: list[dict[str, Any]] = catalog.load_table((namespace, "orders")).scan().to_arrow().to_pylist()
    return rows


def everything(ring: Ring) -> dict[str, int]:
    """Objects of the bucket, with their generations, and files of the warehouse, with their sizes, that are
    no replay's."""
    chain = layout.part(layout.shadow_chain(CLUSTER, "check"))
    objects = {info.name: info.generation for info in ring.store.list("") if chain not in info.name.split("/")}
    mine = {to_namespace("shop", "check"), to_changes_namespace("shop", "check")}
    files = [path for path in (ring.folder / "lake" / "warehouse").rglob("*") if path.is_file() and not mine & set(path.parts)]
    return objects | {str(path): path.stat().st_size for path in files}


@pytest.mark.spark
@pytest.mark.timeout(1500)
def test_hours_are_folded_from_nothing_and_nothing_else_is_touched(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a", "b")
    ring.write(insert(1, 1, 1, name=1))
    ring.write(insert(2, 1, 2, name=2))
    ring.truncate(3)
    ring.write(insert(3, 1, 4, name=3, ttl=60))
    # Behind its own TRUNCATE on one node, ahead of the other's.
    ring.write(insert(4, 1, 5, name=4), "b")
    ring.finish_and_ship(10)
    assert ring.batch(100).rows == {"shop.orders": 1}
    ring.write(update(4, 1, 4000, amount=5))
    ring.write(delete_row(2, 1, 4001))
    ring.write(insert(5, 1, 4002, name=5))
    ring.finish_and_ship(4010)
    assert ring.batch(4100).rows == {"shop.orders": 2}
    before, current, events = everything(ring), ring.current(), len(ring.events())

    first = replayed(ring, 1)
    assert {row["id"]: row["name"] for row in table(ring, "shop__check")} == {4: 4}
    assert [account.updates_in for account in first.accounting if account.table == "shop.orders"] == [7]
    again = replayed(ring, 2)
    assert (again.events, again.held, again.refused) == (2, [], [])
    shown = {
        (row["id"], row["line"]): {n: row[n] for n in ("note", "name", "amount") if row[n] is not None}
        for row in table(ring, "shop__check")
    }
    assert shown == current == {(4, 1): {"name": 4, "amount": 5}, (5, 1): {"name": 5}}
    told = sorted(table(ring, "shop__check__changes"), key=lambda row: (row["batch"], row["ordinal"]))
    assert folded(told) == current
    assert {event["batch"] for event in told} == {first.number, again.number}
    assert replayed(ring, 2).events == 0

    # As the runbook says: nothing differs, and all of it goes.
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8").partition("## Replay to compare")[2]
    statements = re.findall(r"[^;]+(?=;\n)", text.partition("```sql\n")[2].partition("```")[0])
    spark = spark_session(ring.config, "a comparison")
    try:
        answers = [spark.sql(statement).collect() for statement in statements]
    finally:
        spark.stop()
    assert answers == [[]] * 6
    left = SqlCatalog("lake", uri=f"sqlite:///{ring.folder / 'lake' / 'catalog.db'}").list_namespaces()
    assert sorted(left) == [("shop",), ("shop__changes",)]
    assert everything(ring) == before
    assert (ring.current(), len(ring.events())) == (current, events)
