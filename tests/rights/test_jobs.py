"""Planner and jobs with the jobs' rights alone, without Spark: what is planned, archived, noted, packed and
let go.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from shippers import truncations
from tests.rights.places import S3, Place, at
from tests.rights.test_shipper import REFUSED
from writetime.errors import StoreError
from writetime.pipeline import archive_packing, retention
from writetime.pipeline.archiver import archive, mark_for_retry, release, sweep
from writetime.pipeline.conflicts import keep
from writetime.pipeline.documents import Manifest, Problem, Sealed, SegmentOutcome
from writetime.pipeline.identity import owner
from writetime.pipeline.planner import plan_ingest, seal, store_clock
from writetime.pipeline.publish_progress import Published, write_published
from writetime.pipeline.truncation_reports import sweep_answers
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.layout import NodeName, SegmentName, SegmentRef
from writetime.storage.store import Store

NOW = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)


def of(node: NodeName, number: int) -> SegmentRef:
    return SegmentRef(node, SegmentName(number, 7))


def ship(root: Store, node: NodeName) -> None:
    """What has come in: three segments, a part of one of them, two answers about TRUNCATEs."""
    noted = {"sealed_at": NOW.isoformat(), "ending": "completed"}
    for number in (1, 2, 3):
        root.put(of(node, number).incoming, f"segment {number}".encode() * 99, metadata=noted)
    root.put(of(node, 1).part(0, 99), b"part", metadata=noted)
    for minute in (0, 1):
        truncations.ship_truncations(root, node, [], NOW + timedelta(minutes=minute))


def plan(store: Store, node: NodeName) -> Manifest:
    manifest = plan_ingest(store, node.cluster, now=NOW)
    assert manifest is not None
    return manifest


def run(store: Store, node: NodeName, manifest: Manifest) -> Sealed:
    """What a batch leaves in the bucket; the first of its segments has no problem."""
    store.put(layout.batch_object(node.cluster, manifest.number, "schema"), b"{}", if_generation=0)
    record = of(node, 2).quarantined(4, 5)
    store.put(f"{record}.bin", b"bytes")
    store.put(f"{record}.json", b'{"settled_in": 1}')
    problem = Problem(kind="corrupt_frame", position=4, size=5, message="CRC")
    outcomes = [
        SegmentOutcome(
            object=segment.object,
            frames=3,
            updates=3,
            problems=[] if segment.ref == of(node, 1) else [problem],
        )
        for segment in manifest.segments
    ]
    held = [outcome.object for outcome in outcomes if outcome.problems]
    sealed = Sealed(
        number=manifest.number,
        kind="ingest",
        sealed_at=NOW,
        segments=outcomes,
        accounting=[],
        state={},
        held=held,
    )
    return seal(store, node.cluster, sealed)


def settle(store: Store, node: NodeName) -> None:
    """What jobs and people do with the segments that are held."""
    sweep(store, node.cluster)
    sweep_answers(store, node.cluster)
    release(store, node.cluster, of(node, 3).incoming, "damaged for good")
    mark_for_retry(store, of(node, 2).incoming)
    assert plan(store, node).number == 2
    again = [SegmentOutcome(object=of(node, 2).incoming)]
    seal(
        store,
        node.cluster,
        Sealed(number=2, kind="ingest", sealed_at=NOW, segments=again, accounting=[], state={}),
    )
    archive(store, node.cluster, 2)
    write_published(store, node.cluster, Published(batch=2, events=1))


def forget(store: Store, node: NodeName) -> None:
    """What becomes of it all a year later."""
    later, old = NOW + timedelta(days=400), datetime.now(UTC) + timedelta(days=1)
    for name in list(archive_packing.to_pack(store, node.cluster, later)):
        archive_packing.pack(store, name, 3)
    for info in list(archive_packing.to_let_go(store, node.cluster, later)):
        archive_packing.let_go(store, info)
    gone = [
        *retention.entries(store, node.cluster, later),
        *retention.settled(store, node.cluster, old),
        *retention.reports(store, node.cluster, old),
    ]
    assert {info.name.partition("/")[0] for info in gone} == {
        "audit",
        "ledger",
        "quarantine",
        "verify",
    }
    for info in gone:
        retention.remove(store, info)


def everything(store: Store, node: NodeName) -> None:
    """A pipeline's life without Spark."""
    store_clock(store, node.cluster)
    owner(store, node.cluster, "demo")
    for report in (layout.verify_report, layout.audit_report):
        for when in (NOW, NOW + timedelta(days=1)):
            store.put(report(node.cluster, when), b"{}")
    run(store, node, plan(store, node))
    archive(store, node.cluster, 1)
    settle(store, node)
    forget(store, node)


def test_a_batch_is_planned_archived_and_forgotten(place: Place, node: NodeName) -> None:
    ship(place.root(), node)
    everything(place.become("jobs", cluster=node.cluster), node)
    left = {info.name.partition("/")[0] for info in place.root().list() if layout.part(node.cluster) in info.name}
    assert left == {
        "audit",
        "batches",
        "clock",
        "pipelines",
        "published",
        "released",
        "retries",
        "truncations",
        "verify",
    }


NEEDED = {
    # Who may not list is not told that an object is missing either, and that comes first.
    "list": "(list objects|(read|look up) an object)",
    "read": "(look up|read|verify|write|copy|delete) an object",
    **{
        f"write:{folder}": rf"(write|copy) an object.*[/ ]{folder}/"
        for folder in (
            "audit", "batches", "cdc_archive", "clock", "ledger", "pipelines", "published", "quarantine", "released", "retries", "verify",
        )
    },
    **{f"delete:{folder}": rf"delete an object.*/{folder}/" for folder in ("cdc", "cdc_parts", "truncations")},
}  # fmt: skip
NEEDED_OF_S3 = {
    f"delete:{folder}": rf"delete an object.*/{folder}/" for folder in ("audit", "cdc_archive", "ledger", "quarantine", "verify")
}
"""Google has no right to replace that is not one to delete."""


@pytest.mark.parametrize("missing", NEEDED)
def test_without_one_of_its_rights_it_fails_by_name(place: Place, node: NodeName, missing: str) -> None:
    lacks(place, node, missing, NEEDED[missing])


@at(S3)
@pytest.mark.parametrize("missing", NEEDED_OF_S3)
def test_without_one_that_only_amazon_has_it_fails_by_name(place: Place, node: NodeName, missing: str) -> None:
    lacks(place, node, missing, NEEDED_OF_S3[missing])


def lacks(place: Place, node: NodeName, missing: str, trouble: str) -> None:
    """Somewhere in a pipeline's life that right is asked for; the error says on which object, and for
    what."""
    ship(place.root(), node)
    store = place.become("jobs", cluster=node.cluster, without=missing)
    with pytest.raises(StoreError, match=REFUSED) as caught:
        everything(store, node)
    assert re.search(trouble, str(caught.value)), caught.value
    assert not caught.value.retriable


# --- a segment in conflict

NEEDED_TO_DECIDE = {
    # Where to write is also to delete, what does not count is moved away first.
    "write:cdc": r"(write|copy|delete) an object.*[/ ]cdc/",
    "write:conflicts": r"write an object.*/conflicts/",
    "write:rejected": r"copy an object.*[/ ]rejected/",
}


def dispute(root: Store, node: NodeName) -> str:
    """A segment of which there are other bytes; the object that its node shipped."""
    own, noted = b"the node's own", {"sealed_at": NOW.isoformat()}
    root.put(of(node, 4).incoming, b"squatted", metadata=noted)
    return root.put(of(node, 4).conflict(crc32c(own)), own, metadata=noted).name


def test_a_person_decides_for_the_nodes_own_bytes(place: Place, node: NodeName) -> None:
    name = dispute(place.root(), node)
    keep(place.become("jobs", cluster=node.cluster), node.cluster, name, "seen on the node", now=NOW)
    root = place.root()
    assert root.read(of(node, 4).incoming) == b"the node's own"
    assert root.read(of(node, 4).rejected(crc32c(b"squatted"))) == b"squatted"
    assert root.head(name) is None


@pytest.mark.parametrize("missing", NEEDED_TO_DECIDE)
def test_without_one_of_its_rights_nobody_decides(place: Place, node: NodeName, missing: str) -> None:
    name = dispute(place.root(), node)
    store = place.become("jobs", cluster=node.cluster, without=missing)
    with pytest.raises(StoreError, match=REFUSED) as caught:
        keep(store, node.cluster, name, "seen on the node", now=NOW)
    assert re.search(NEEDED_TO_DECIDE[missing], str(caught.value)), caught.value
