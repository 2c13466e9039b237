"""A shipper with its own node's rights alone: ships all that a node ships, and is refused all else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import structlog

from shippers.agent import Agent, Round
from shippers.upload import Outcome
from tests.rights.places import PLACES, RIGHTS_FIRST, S3, GcsPlace, Place, at
from tests.shippers.conftest import FakeLink, Folder
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.config.cluster import ClusterConfig
from writetime.config.node import NodeConfig, ShipConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from writetime.storage import layout, segment_parts
from writetime.storage import s3 as s3_module
from writetime.storage.layout import NodeName, SegmentName, SegmentRef
from writetime.storage.store import Store

TRUNCATED = [{"table_id": "0b1c0a52-0c43-4f0a-8a57-0242ac120002", "segment": 1, "position": 7, "at": 1_767_225_600_000}]
LARGE = b"large" * (2 << 20)
"""Goes in parts, as a segment of more than 64 MiB does."""
REFUSED = "403|AccessDenied|Forbidden"


@dataclass
class Machine:
    """A node's machine: its folder, and the shipper on it."""

    node: NodeName
    folder: Folder
    state: Path

    def agent(self, store: Store) -> Agent:
        answer = {
            **FakeLink().facts_now,
            "cluster": self.node.cluster,
            "datacenter": self.node.datacenter,
            "host_id": self.node.host_id,
        }
        node = NodeConfig(
            cdc_raw=self.folder.path, state_dir=self.state, host_id=self.node.host_id, datacenter=self.node.datacenter,
            ship=ShipConfig(tail_seconds=0.001),
        )  # fmt: skip
        cluster = ClusterConfig(name=self.node.cluster, datacenters=[self.node.datacenter])
        config = PipelineConfig(pipeline="demo", cluster=cluster, bucket=store.url, node=node)
        return Agent(config, store, link=FakeLink(facts_now=answer, truncated=TRUNCATED), stop=Event(), pause=0.0)  # type: ignore[arg-type]

    def ref(self, number: int) -> SegmentRef:
        return SegmentRef(self.node, SegmentName(number, 7))

    def lay_down(self) -> dict[int, bytes]:
        """Two finished segments and one that grows; the bytes of the finished ones."""
        log = self.folder.path / "CommitLog-7-9.log"
        data = encode_segment(9, 7, [b"x" * 40] * 3, per_section=1)
        log.write_bytes(data + bytes(100))
        log.with_name("CommitLog-7-9_cdc.idx").write_text(str(len(data)))
        return {1: self.folder.segment(1), 2: self.folder.segment(2, LARGE)}


@pytest.fixture
def machine(node: NodeName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(s3_module, "_ONE_REQUEST", 8 << 20)
    for folder in ("cdc_raw", "data/system"):
        (tmp_path / folder).mkdir(parents=True)
    return Machine(node, Folder(tmp_path / "cdc_raw"), tmp_path / "state")


@pytest.fixture
def logged() -> Iterator[list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as found:
        yield found


def said(logged: list[dict[str, Any]], result: Round) -> str:
    """All errors of a round, and what was logged of others."""
    return "\n".join(
        [
            *map(str, result.failed),
            *(str(entry) for entry in logged if entry["log_level"] in ("warning", "error")),
        ]
    )


def kinds(store: Store, node: NodeName) -> set[str]:
    """Folders in which the node has objects."""
    found = {
        info.name for folder in ("cdc", "cdc_parts", "nodes", "schemas", "truncations") for info in store.list(f"{folder}/{node.path}/")
    }
    return {name.partition("/")[0] for name in found}


@at(*PLACES, RIGHTS_FIRST)
def test_all_that_a_node_ships_goes_up_with_its_own_rights(place: Place, machine: Machine, logged: list[dict[str, Any]]) -> None:
    written = machine.lay_down()
    result = machine.agent(place.become("shipper", machine.node)).round()
    assert (said(logged, result), result.shipped) == ("", {Outcome.UPLOADED: 2})
    root = place.root()
    assert {number: root.read(machine.ref(number).incoming) for number in written} == written
    assert [part.start for part in segment_parts.of(root, machine.ref(9))] == [0]
    assert kinds(root, machine.node) == {"cdc", "cdc_parts", "nodes", "schemas", "truncations"}


@at(*PLACES, RIGHTS_FIRST)
def test_what_is_there_already_is_looked_at_and_nothing_more(place: Place, machine: Machine, logged: list[dict[str, Any]]) -> None:
    written = machine.lay_down()
    store = place.become("shipper", machine.node)
    assert machine.agent(store).round().ok
    for number, data in written.items():
        machine.folder.segment(number, data)
    # A shipper that has lost its notes ships the parts again, too.
    machine.state = machine.state.with_name("another")
    result = machine.agent(store).round()
    assert (said(logged, result), result.shipped) == ("", {Outcome.ALREADY_THERE: 2})
    machine.folder.segment(1, b"other bytes")
    result = machine.agent(store).round()
    assert result.shipped == {Outcome.IN_CONFLICT: 1}
    root = place.root()
    assert root.read(machine.ref(1).incoming) == written[1]
    found = [info.name for info in root.list(f"cdc/{machine.node.path}/conflict-")]
    assert [root.read(name) for name in found] == [b"other bytes"]


# --- one right too few

NEEDED = {
    "create:cdc": ("write an object", "cdc"),
    "create:cdc_parts": ("write an object", "cdc_parts"),
    "create:nodes": ("write an object", "nodes"),
    "create:schemas": ("write an object", "schemas"),
    "create:truncations": ("write an object", "truncations"),
    "read:cdc": ("(look up|verify) an object", "cdc"),
}
NEEDED_OF_S3 = {f"read:{folder}": ("verify an object", folder) for folder in ("cdc_parts", "nodes", "schemas", "truncations")}
"""There a write is looked at; Google's answer to it says what the bucket holds."""


@pytest.mark.parametrize("missing", NEEDED)
def test_without_one_of_its_rights_it_fails_by_name(place: Place, machine: Machine, logged: list[dict[str, Any]], missing: str) -> None:
    lacks(place, machine, logged, missing, *NEEDED[missing])


@at(S3)
@pytest.mark.parametrize("missing", NEEDED_OF_S3)
def test_without_one_that_only_amazon_asks_for_it_fails_by_name(
    place: Place, machine: Machine, logged: list[dict[str, Any]], missing: str
) -> None:
    lacks(place, machine, logged, missing, *NEEDED_OF_S3[missing])


def lacks(place: Place, machine: Machine, logged: list[dict[str, Any]], missing: str, operation: str, folder: str) -> None:
    """A round without that right says which operation on what object is refused, and deletes no segment that
    depends on it."""
    machine.lay_down()
    result = machine.agent(place.become("shipper", machine.node, without=missing)).round()
    trouble = said(logged, result)
    assert re.search(rf"{operation}.*/{folder}/{re.escape(machine.node.path)}/", trouble), trouble
    assert re.search(REFUSED, trouble)
    assert (folder in kinds(place.root(), machine.node)) == missing.startswith("read")
    if folder == "cdc":
        assert result.shipped == {}
        assert {"CommitLog-7-1.log", "CommitLog-7-2.log"} < set(machine.folder.names)


# --- all else

OF_NODES = ("cdc", "cdc_parts", "nodes", "schemas", "truncations")
OF_JOBS = (
    "batches",
    "cdc_archive",
    "clock",
    "conflicts",
    "ledger",
    "quarantine",
    "released",
    "retries",
)
OTHERS = ("other", "7b1c0a52-0c43-4f0a-8a57-0242ac1200020", "7b1c0a52-0c43-4f0a-8a57-0242ac12000")
"""Host ids of others, some of which begin as the node's own does, or the other way round."""
Attempts = Iterator[tuple[str, Callable[[], object]]]


def own(node: NodeName, folder: str = "cdc") -> str:
    return f"{folder}/{node.path}/there"


def other(node: NodeName, folder: str = "cdc", host: str = "other") -> str:
    """Of another node of the ring."""
    return own(replace(node, host_id=host), folder)


def of(folder: str, node: NodeName) -> str:
    """Of the pipeline."""
    return f"{folder}/{layout.part(node.cluster)}/there"


def forbidden(store: Store, node: NodeName) -> Attempts:
    """What a shipper may not do, by what it is."""
    for folder in OF_NODES:
        name = own(node, folder)
        info = store.head(name)
        assert info is not None
        yield f"overwrite its own {folder}", partial(store.put, name, b"new")
        yield f"replace its own {folder}", partial(store.put, name, b"new", if_generation=info.generation)
        yield f"delete its own {folder}", partial(store.delete, name)
        yield f"list its own {folder}", lambda: list(store.list(f"{folder}/{node.path}/"))  # noqa: B023
        yield f"learn that its own {folder} is missing", partial(store.head, f"{name}-missing")
        for host in OTHERS:
            yield from foreign(store, other(node, folder, host))
    for folder in OF_JOBS:
        yield from foreign(store, of(folder, node))
    for elsewhere in (replace(node, datacenter="dc2"), replace(node, cluster="another")):
        yield from foreign(store, own(elsewhere))
    yield "create where there is no folder", partial(store.put, "anything", b"new", if_generation=0)
    yield "copy what is another's to its own", partial(store.copy, other(node), f"{own(node)}-new")
    yield "copy what is its own to another's", partial(store.copy, own(node), f"{other(node)}-new")
    yield "list all", lambda: list(store.list())


def foreign(store: Store, name: str) -> Attempts:
    """The same with an object that is not its own."""
    yield f"read {name}", partial(store.read, name)
    yield f"look at {name}", partial(store.head, name)
    yield f"create beside {name}", partial(store.put, f"{name}-new", b"new", if_generation=0)
    yield f"overwrite {name}", partial(store.put, name, b"new")
    yield f"delete {name}", partial(store.delete, name)


def contents(store: Store, node: NodeName) -> dict[str, bytes]:
    return {info.name: store.read(info.name) for info in store.list() if layout.part(node.cluster) in info.name or "another" in info.name}


def outcome(attempt: Callable[[], object]) -> str:
    """What the store says to it; a refusal must be none that is tried again, nor one that tells what is
    there."""
    try:
        attempt()
    except (PreconditionFailed, ObjectNotFound, StoreUnavailable) as error:
        return type(error).__name__
    except StoreError as error:
        return str(error)
    return "allowed"


@at(*PLACES, RIGHTS_FIRST)
def test_it_is_refused_all_that_is_not_its_right(place: Place, node: NodeName) -> None:
    root = place.root()
    there = [
        *(own(node, folder) for folder in OF_NODES),
        *(other(node, folder, host) for folder in OF_NODES for host in OTHERS),
        *(of(folder, node) for folder in OF_JOBS),
        own(replace(node, datacenter="dc2")),
        own(replace(node, cluster="another")),
    ]
    for name in there:
        root.put(name, b"there")
    before = contents(root, node)
    store = place.become("shipper", node)
    found = {what: outcome(attempt) for what, attempt in forbidden(store, node)}
    assert {what: said for what, said in found.items() if not re.search(REFUSED, said)} == {}
    assert contents(place.root(), node) == before


def of_google(store: Store, node: NodeName) -> Iterator[Callable[[], object]]:
    """What the store's module never sends, but whoever stole the credentials can."""
    bucket = getattr(store, "_bucket")  # noqa: B009
    blob = bucket.blob(own(node))
    blob.metadata = {"sealed_at": "2030-01-01T00:00:00+00:00"}
    yield blob.patch
    yield bucket.reload


def of_amazon(store: Store, node: NodeName) -> Iterator[Callable[[], object]]:
    """The same."""
    client, key = getattr(store, "_client"), {"Bucket": "bucket", "Key": own(node)}  # noqa: B009
    begun = client.create_multipart_upload(**key)["UploadId"]
    tag = client.upload_part(**key, UploadId=begun, PartNumber=1, Body=b"new")["ETag"]
    done = {"UploadId": begun, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": tag}]}}

    def delete_many() -> None:
        answer = client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": own(node)}]})
        raise StoreError(str(answer["Errors"]))

    yield lambda: client.put_object(**key, Body=b"new", IfMatch=client.head_object(**key)["ETag"])
    yield lambda: client.complete_multipart_upload(**key, **done)
    yield lambda: client.copy_object(**key, CopySource=key, MetadataDirective="REPLACE")
    yield lambda: client.upload_part_copy(**key, UploadId=begun, PartNumber=2, CopySource={"Bucket": "bucket", "Key": other(node)})
    yield delete_many
    yield lambda: client.list_multipart_uploads(Bucket="bucket")
    yield lambda: client.get_bucket_policy(Bucket="bucket")
    yield lambda: client.put_bucket_policy(Bucket="bucket", Policy="{}")
    yield lambda: client.delete_bucket(Bucket="bucket")
    yield client.list_buckets


def test_requests_that_no_shipper_makes_are_refused(place: Place, node: NodeName) -> None:
    root = place.root()
    root.put(own(node), b"there")
    root.put(other(node), b"another's")
    store = place.become("shipper", node)
    for attempt in (of_google if isinstance(place, GcsPlace) else of_amazon)(store, node):
        with pytest.raises(Exception, match=REFUSED):
            attempt()
    assert place.root().read(own(node)) == b"there"
