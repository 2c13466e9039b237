"""Whatever a node writes beside its segments is read or is refused with a reason, and never anything else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.node_objects import status_of
from tests.storage.memory import MemoryStore
from writetime import untrusted
from writetime.cassandra.schema.history import TRACKED, SchemaLearner
from writetime.cassandra.schema.snapshot import parse
from writetime.cassandra.schema.system_tables import SCHEMA_TABLES
from writetime.errors import NotASegment, SchemaError
from writetime.monitoring.ignored import ignored
from writetime.monitoring.status import as_document, as_text
from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import Manifest, SegmentInput
from writetime.pipeline.node_facts import read_facts
from writetime.pipeline.planner import plan_ingest
from writetime.pipeline.truncation_reports import new_answers, read_answers
from writetime.storage import layout, untrusted_objects
from writetime.storage.store import ObjectInfo
from writetime.untrusted import Untrusted

CLUSTER = "c"
NODE = layout.NodeName(CLUSTER, "dc1", "h")
NOW = datetime.now(UTC)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(), max_size=20)
    | st.sampled_from(["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "NaN", "\ud800", "2026-01-01T00:00:00", "1e999", "text"])
    | st.uuids().map(str)
    | st.datetimes().map(datetime.isoformat)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12
)


def fields(*keys: str) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with some of these keys, and values of any kind."""
    return st.dictionaries(st.sampled_from(keys) | st.text(max_size=5), VALUES, max_size=len(keys) + 1)


def documents(objects: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Such objects as text, some of them deep or damaged."""
    told = objects.map(lambda value: json.dumps(value).encode())
    damaged = st.tuples(told, st.integers(0, 60), st.binary(max_size=3)).map(lambda each: each[0][: each[1]] + each[2] + each[0][each[1] :])
    deep = st.tuples(st.sampled_from([b"[", b'{"a":', b'[{"a":']), st.integers(1, 100_000)).map(lambda each: each[0] * each[1])
    return told | damaged | deep | st.binary(max_size=60)


SPACE = fields("level", "share", "used", "limit", "disk_free")
STATUS = documents(
    st.tuples(
        fields("host_id", "address", "rack", "release_version", "tokens", "datacenter", "at"),
        st.fixed_dictionaries({}, optional={"space": SPACE | VALUES}),
    ).map(lambda parts: {**parts[0], **parts[1]})
)
ANSWER = documents(
    st.fixed_dictionaries(
        {}, optional={"taken_at": VALUES, "truncated_at": st.lists(fields("table_id", "segment", "position", "at"), max_size=3)}
    )
)


def _rows(table: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Rows that have mostly what such rows have, and so get further than any others."""
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "text": st.sampled_from(["a", "b", "partition_key", "int", "frozen<b>", "list<" * 40, "", "\ud800", "'org.apache"])
        | st.text(max_size=6),
        "uuid": st.integers(0, 3).map(lambda n: str(UUID(int=n))) | st.text(max_size=4),
        "int": st.integers(-1, 3) | st.integers(-(2**40), 2**40),
        "timestamp": st.integers(-(2**70), 2**70),
        "boolean": st.booleans(),
        "blob": st.sampled_from(["0x61", "61", "zz", ""]),
    }
    known = {name: kinds.get(str(column.type), SCALARS) | VALUES for name, column in table.columns.items() if name != "keyspace_name"}
    written = st.integers(-(2**64), 2**64) | st.integers(1, 9)
    return st.fixed_dictionaries({"keyspace_name": kinds["text"], "writetime": written}, optional=known)


_TRACKED = {table.name: table for table in SCHEMA_TABLES.values() if table.name in TRACKED}
SNAPSHOT = documents(st.fixed_dictionaries({}, optional={name: st.lists(_rows(table), max_size=3) for name, table in _TRACKED.items()}))

often = settings(max_examples=examples(150), suppress_health_check=list(HealthCheck))


def _expect_storable(store: MemoryStore) -> None:
    """Planning and the status go on, and what they say can be written."""
    good = layout.SegmentRef(NODE, layout.SegmentName(1, 7))
    store.put(good.incoming, b"x")
    manifest = plan_ingest(store, CLUSTER, now=NOW)
    assert manifest is not None
    assert good.incoming in [segment.object for segment in manifest.segments]
    assert Manifest.model_validate_json(manifest.to_bytes()) == manifest
    batches = Batches(store, CLUSTER)
    json.dumps(as_document(batches, 60)).encode()
    as_text(batches, 60).encode()
    assert all(each.reason for each in ignored(batches))


@often
@given(STATUS)
def test_what_a_node_says_of_itself(status: bytes) -> None:
    store = MemoryStore()
    store.put(status_of(NODE), status)
    (found,) = read_facts(store, CLUSTER)
    assert found.node == NODE
    _expect_storable(store)


@often
@given(ANSWER)
def test_what_a_node_says_of_its_truncates(answer: bytes) -> None:
    store = MemoryStore()
    store.put(layout.node_truncations(NODE, NOW, "0"), answer)
    read_answers(store, new_answers(store, CLUSTER, {}))
    _expect_storable(store)


@often
@given(SNAPSHOT)
def test_what_a_node_says_of_the_schema(snapshot: bytes) -> None:
    try:
        mutations = parse(snapshot)
    except SchemaError:
        return
    learner = SchemaLearner()
    for mutation in mutations:
        learner.apply(mutation)
    learner.schema()
    assert len(learner.cdc_ever) + len(learner.left_out) + len(learner.cdc_back) >= 0
    assert SchemaLearner.from_json(learner.to_json().encode()).to_json() == learner.to_json()


@often
@given(st.dictionaries(st.sampled_from(["sealed_at", "ending", "size", "crc32c"]), SCALARS.map(str) | st.text(max_size=80)))
def test_notes_on_a_segment(notes: dict[str, str]) -> None:
    ref = layout.SegmentRef(NODE, layout.SegmentName(1, 7))
    for name in (ref.incoming, layout.packed(ref.archived(NOW)), ref.part(0, 7)):
        segment = SegmentInput.from_object(ObjectInfo(name, 7, 1, 2, NOW, notes))
        assert untrusted.EARLIEST <= segment.sealed_at <= NOW + untrusted_objects.AHEAD
        assert layout.archive_hour(ref.archived(segment.sealed_at)) is not None
        assert SegmentInput.model_validate_json(segment.model_dump_json()) == segment


PIECES = (
    st.sampled_from(["cdc", "cdc_parts", "nodes", "c", "dc1", "h", "%68", "frames", "snapshot-1", "CommitLog-7-1.log", "CommitLog-7-1"])
    | st.sampled_from([f"CommitLog-7-{'9' * 40}.log", "CommitLog-٧-1.log", "0000000000-0000000007", "h.json", "%", "%FF", "..", ".", "~"])
    | st.text(max_size=8)
)


@often
@given(st.lists(PIECES, max_size=7).map("/".join))
@example("cdc/c/dc1/%68/CommitLog-7-1.log")
@example(f"nodes/c/dc1/{'a' * 2000}.json")
def test_names(name: str) -> None:
    assert layout.batch_number(name) is None
    for of in (layout.NodeName.of_facts, layout.NodeName.of_truncations):
        node = of(name)
        assert node is None or node.path in name
    try:
        ref = layout.SegmentRef.from_object(name)
    except NotASegment:
        return
    assert name in (ref.incoming, ref.growing) or name.startswith((f"{ref.growing}/", "cdc_archive/"))
    assert 0 <= ref.segment.id < 2**63


@often
@given(st.text(alphabet='[]{}",\\:a1', max_size=200))
def test_the_depth_is_counted_as_a_parser_counts_it(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(Untrusted):
            untrusted.parse(text.encode())
        return
    depth = _depth(expected)
    if depth <= untrusted.DEEPEST:
        assert untrusted.parse(text.encode()) == expected
    else:
        with pytest.raises(Untrusted, match="deeper"):
            untrusted.parse(text.encode())


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (1 if isinstance(value, (dict, list)) else 0) + max(map(_depth, inner), default=0)


@pytest.mark.parametrize(
    "text", ["[" * 33 + "]" * 33, '["' + "[" * 100 + '"]', '["\\"' + "[" * 100 + '"]', '["\\\\", ' + "[" * 40 + "]" * 41]
)
def test_brackets_in_strings_are_no_depth(text: str) -> None:
    if _depth(json.loads(text)) <= untrusted.DEEPEST:
        assert untrusted.parse(text.encode()) == json.loads(text)
    else:
        with pytest.raises(Untrusted, match="deeper"):
            untrusted.parse(text.encode())
