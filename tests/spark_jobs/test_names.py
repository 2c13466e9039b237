"""Names of clusters, buckets, prefixes and tables: store, state and tables mean the same place by each, on a folder, in S3 and
in GCS; all others are refused before anything starts (`tests.names`, docs/names.md)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from spark_jobs.maintain import remove_before
from spark_jobs.sinks.data_files import FileTarget
from spark_jobs.state.shards import Record, Shard, in_batches, upsert
from tests import gcs_server, iceberg_jvm, names, s3_server
from tools import jars
from writetime.config.pipeline import PipelineConfig
from writetime.events import envelope, naming
from writetime.pipeline.maintenance_report import size_of_state
from writetime.storage import layout, open_store
from writetime.storage.layout import NodeName, SegmentName, SegmentRef
from writetime.storage.store import Store

TABLE = "5a1c395e-b41f-11e5-9f22-ba0be0483c18"
_COLUMN = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])


@dataclass
class Service:
    """A kind of store: a folder, or a test server."""

    kind: str
    root: Path
    make_bucket: Callable[[str], None] = lambda _: None
    jars: tuple[Path, ...] = ()
    options: dict[str, str] = field(default_factory=dict)

    def config(self, kind: names.Kind) -> PipelineConfig:
        return names.configured(kind, self.kind, self.root / "lake")

    def everything(self) -> set[str]:
        """Names of all objects there are, as nobody has taken their address apart."""
        return {each.name for each in self.whole.names("")}

    @property
    def whole(self) -> Store:
        return open_store(str(self.root / "lake") if self.kind == "folder" else f"{names.BASES[self.kind]}{names.BUCKET}")


@pytest.fixture(params=["folder", pytest.param("S3", marks=pytest.mark.s3), pytest.param("GCS", marks=pytest.mark.gcs)])
def service(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with ExitStack() as stack:
        if request.param == "folder":
            yield Service("folder", tmp_path)
            return
        if request.param == "S3":
            binary = s3_server.program()
            if binary is None:
                pytest.skip("no S3 test server: run make test-s3")
            server = stack.enter_context(s3_server.running(binary, tmp_path))
            s3_server.into_environment(monkeypatch, server.url, server.access, server.secret)
            account = {"s3.access-key-id": server.access, "s3.secret-access-key": server.secret, "client.region": "us-east-1"}
            reach = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", "s3.endpoint": server.url, "s3.path-style-access": "true"}
            made = Service("S3", tmp_path, server.make_bucket, (jars.need("s3"),), reach | account)
        else:
            program = gcs_server.program()
            if program is None:
                pytest.skip("no GCS test server: run make test-gcs")
            url = stack.enter_context(gcs_server.running(program, tmp_path, xml=True))
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
            reach = {"gcs.service.host": url, "gcs.no-auth": "true", "gcs.project-id": "test"}
            io = {"io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}
            made = Service("GCS", tmp_path, lambda name: gcs_server.make_bucket(url, name), (jars.need("gcs"),), io | reach)
        made.make_bucket(names.BUCKET)
        yield made


# --- clusters


def test_each_cluster_has_objects_of_its_own_and_they_are_found_by_its_name(service: Service) -> None:
    """Of all clusters at once, in one bucket: no two share a name, and none is listed as another's."""
    configs = [service.config(kind) for kind in names.accepted("cluster", service.kind)]
    assert len(configs) > 10
    store = open_store(configs[0].bucket)
    refs = [SegmentRef(NodeName(config.cluster.name, "dc 1", str(uuid.uuid4())), SegmentName(1, 7)) for config in configs]
    for ref in refs:
        store.put(ref.incoming, ref.node.cluster.encode(), if_generation=0)
    assert [list(store.folders(layout.incoming_prefix(ref.node.cluster))) for ref in refs] == [
        [f"cdc/{layout.part(ref.node.cluster)}/dc%201/"] for ref in refs
    ]
    for ref in refs:
        (found,) = store.names(layout.incoming_prefix(ref.node.cluster))
        assert SegmentRef.from_object(found.name) == ref
        assert store.read(found.name) == ref.node.cluster.encode()


def test_state_of_each_cluster_lies_where_the_store_looks_for_it(service: Service) -> None:
    for kind in names.accepted("cluster", service.kind):
        config = service.config(kind)
        store, cluster = open_store(config.bucket), config.cluster.name
        write(config, store, generation=0)
        write(config, store, generation=1)
        listed = {each.name for each in store.names("state/")}
        assert listed == {each.name for each in store.names(layout.states_prefix(cluster))}, kind
        size = size_of_state(store, cluster)
        assert size.objects + size.index_objects == len(listed) > 4, kind
        assert remove_before(store, layout.state_prefix(cluster, TABLE), (1, 0)) > 0, kind
        assert {layout.state_generation(each.name)[0] for each in store.names("state/")} == {1}, kind
        assert remove_before(store, layout.state_prefix(cluster, TABLE), (2, 0)) > 0, kind
        assert list(store.names("state/")) == [], f"{kind}: the state lies where the store does not look for it"


def write(config: PipelineConfig, store: Store, generation: int = 0) -> None:
    """Write a shard, and read it."""
    place = config.cluster.name, TABLE, generation, 0
    uri = config.state_url(layout.state_shard(*place))
    done = upsert(uri, 0, 1, in_batches([Record(b"k", b"state", None)]), store, layout.state_lease(*place))
    assert Shard(uri, done.version).get([b"k"]) == {b"k": b"state"}


# --- prefixes and buckets


def test_store_state_and_tables_mean_the_same_place_by_a_prefix(service: Service) -> None:
    kinds = [*names.accepted("prefix", service.kind), *(names.accepted("bucket", service.kind) if service.kind != "folder" else ())]
    assert len(kinds) > 10
    with iceberg_jvm.running(*service.jars) as jvm:
        for number, kind in enumerate(kinds):
            if kind.where == "bucket":
                service.make_bucket(kind.name)
            before = service.everything()
            config = service.config(kind)
            store = open_store(config.bucket)
            store.put("cdc/x", b"store", if_generation=0)
            write(config, store)
            assert config.catalog is not None
            tables = iceberg_jvm.Tables(jvm, config.catalog.warehouse, service.root / f"{number}.db", service.options)
            table = tables.create("shop", "orders")
            target = FileTarget(f"{table.location()}/data", "stem", _COLUMN)
            file = target.write_one(None, [pa.record_batch({"id": [7]}, schema=_COLUMN)])
            tables.append(table, file["path"], file["size"], file["rows"])
            assert tables.rows(table) == [7], kind
            mine = {each.name for each in store.names("")}
            assert {name.partition("/")[0] for name in mine} == {"cdc", "leases", "shop", "state"}, kind
            # As Iceberg lists them, so that maintenance finds orphans; of a folder it gives URIs.
            assert {found.rpartition("/")[2] for found in tables.files(table)} == _visible(mine), kind
            if kind.where == "bucket":
                continue
            prefix = kind.name.rstrip("/") if service.kind != "folder" else str(Path(config.bucket).relative_to(service.root / "lake"))
            assert service.everything() - before == {f"{prefix}/{name}" for name in mine}, f"{kind}: something lies elsewhere"


def _visible(found: set[str]) -> set[str]:
    """File names of the table, without the checksums that Hadoop hides."""
    files = {name.rpartition("/")[2] for name in found if name.startswith("shop/")}
    return {name for name in files if not name.startswith(".")}


# --- tables


def test_tables_have_names_of_their_own_in_bucket_warehouse_and_topics() -> None:
    tables = [kind.name for kind in names.KINDS if kind.where == "table"]
    for named in (
        [layout.table_folder("shop", name) for name in tables],
        [naming.to_table(name).casefold() for name in tables],
        [envelope.topic("p", "shop", name) for name in tables],
    ):
        assert len(set(named)) == len(tables)
        assert all(len(each.encode()) <= naming.MAX_TOPIC for each in named)


def test_tables_of_each_name_can_be_created_and_found(service: Service) -> None:
    tables = [kind.name for kind in names.KINDS if kind.where == "table"]
    config = service.config(names.Kind("cluster", "Test Cluster", ""))
    assert config.catalog is not None
    store = open_store(config.bucket)
    with iceberg_jvm.running(*service.jars) as jvm:
        catalog = iceberg_jvm.Tables(jvm, config.catalog.warehouse, service.root / "catalog.db", service.options)
        for name in tables:
            made = catalog.create(naming.to_namespace(name), naming.to_table(name))
            assert made.location().startswith(f"{config.catalog.warehouse}/{naming.to_namespace(name)}/{naming.to_table(name)}")
            assert list(store.names(f"{naming.to_namespace(name)}/")), name
            store.put(layout.bootstrap_run("Test Cluster", "shop", name, "1"), b"run", if_generation=0)
            assert len(list(store.names(layout.bootstrap_prefix("Test Cluster", "shop", name)))) == 1


@pytest.mark.kafka
def test_kafka_creates_the_topic_of_each_table(kafka_broker: str) -> None:
    topics = [envelope.topic(f"names-{uuid.uuid4().hex[:8]}", "shop", kind.name) for kind in names.KINDS if kind.where == "table"]
    admin = AdminClient({"bootstrap.servers": kafka_broker})
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result(30)
    assert set(topics) <= set(admin.list_topics(timeout=30).topics)


# --- the page


def test_the_page_says_what_is_refused() -> None:
    page = names.PAGE.read_text(encoding="utf-8")
    assert page == names.with_table(page), "write it: python -m tests.names"


@pytest.mark.parametrize(
    "kind", [kind for kind in names.KINDS if kind.where != "table"], ids=lambda kind: f"{kind.where}:{ascii(kind.name)[:30]}"
)
def test_what_is_refused_names_key_and_reason_and_no_account(kind: names.Kind) -> None:
    for store in names.STORES if kind.where != "bucket" else ("S3", "GCS"):
        if (why := names.refusal(kind, store)) is not None:
            assert why.startswith(("`cluster.name`: ", "`bucket`: ")), why
            assert len(why) > 40
            assert "password" not in why
