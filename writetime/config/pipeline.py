"""One YAML per pipeline, read by the shipper, the jobs and the DAGs alike.

Strategy: pydantic models describe it, reject unknown keys and explain themselves; `load` turns every complaint into one
ConfigError that names file and key. `${NAME}` in any text is replaced from the environment, so that secrets stay out of the file;
a variable that is not set is an error. Relative paths are meant from the file's folder. Knows no store, no service.
"""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ByteSize, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from writetime.errors import ConfigError
from writetime.events import masking
from writetime.storage import layout

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ClusterConfig(_Model):
    """The ring that is captured."""

    name: str = Field(description="Name of the cluster, as the nodes have it (cluster_name).", min_length=1)
    datacenters: list[str] = Field(description="Datacenters whose nodes ship their segments.", min_length=1)
    commitlog_keystore: Path | None = Field(
        default=None,
        description="Keystore (JCEKS or PKCS12) with the keys of encrypted commit logs, a file on every worker; its password is read there "
        "from WRITETIME_KEYSTORE_PASSWORD, a key's own from WRITETIME_KEYSTORE_KEY_PASSWORD.",
    )
    cql: CqlConfig | None = Field(default=None, description="How tables are read from the ring; absent: they never are.")


class CqlConfig(_Model):
    """CQL to the ring, for what reads tables from it. The password is read on every worker from WRITETIME_CQL_PASSWORD, that of a private
    key from WRITETIME_CQL_KEY_PASSWORD: neither is part of the configuration, and neither travels."""

    contact_points: list[str] = Field(description="Addresses of some nodes.", min_length=1)
    port: int = Field(default=9042, ge=1, le=65535, description="CQL port.")
    username: str | None = Field(default=None, description="CQL user; needs no more than SELECT on what is captured.")
    tls: CqlTlsConfig | None = Field(default=None, description="Absent: not encrypted. `{}` trusts the system's authorities.")
    request_seconds: float = Field(default=60.0, gt=0, description="How long one page may take.")


class CqlTlsConfig(_Model):
    """TLS to the ring. All files are PEM, and on every worker."""

    ca: Path | None = Field(default=None, description="Certificates of the authorities that are trusted; default: the system's.")
    certificate: Path | None = Field(default=None, description="Our own certificate, where the ring asks for one.")
    key: Path | None = Field(default=None, description="Its private key; default: in the file of the certificate.")
    check_hostname: bool = Field(default=True, description="Whether a node's certificate must have the address by which it is called.")


class SnapshotConfig(_Model):
    """Reading tables from the ring: what a log does not tell of them."""

    mode: Literal["initial", "always", "never"] = Field(
        default="initial",
        description="initial: a table that is captured and was never read is read by itself. always: again whenever its cdc was switched "
        "on again. never: only when told to.",
    )
    consistency: Literal["ALL", "EACH_QUORUM", "QUORUM", "LOCAL_QUORUM", "ONE", "LOCAL_ONE"] = Field(
        default="ALL",
        description="At less than ALL a row may be missed that is there: what the ring does not show then stays as it is.",
    )
    events: Literal["r", "none"] = Field(
        default="r", description="r: rows that a reading has brought are events of op r. none: they are told by no event."
    )
    ranges: int = Field(default=64, ge=1, description="Token ranges that a table is read in, at least; a range is what is read again.")
    page_rows: int = Field(default=1000, ge=1, description="Rows that are asked for at once.")
    rows_per_second: int | None = Field(default=None, ge=1, description="Rows a second that are read at most, by all workers together.")
    readers: int = Field(default=2, ge=1, description="Ranges that are read at once, at most.")
    attempts: int = Field(default=8, ge=1, description="How often a page is asked for before its range is given up.")
    margin_seconds: float = Field(
        default=10.0,
        ge=0,
        description="What was written so shortly before a range is read is the log's to tell: clocks of clients and nodes differ.",
    )


class TablesConfig(_Model):
    """Which tables are captured. Only tables with `cdc = true` (now or before) ever are."""

    include: list[str] = Field(default=["*.*"], description="keyspace.table patterns; `*` stands for any text.")
    exclude: list[str] = Field(default=[], description="Patterns taken out again.")

    def captures(self, full_name: str) -> bool:
        """Whether a table, as keyspace.table, is captured if it has cdc."""
        included = any(fnmatchcase(full_name, pattern) for pattern in self.include)
        return included and not any(fnmatchcase(full_name, pattern) for pattern in self.exclude)

    @field_validator("include", "exclude")
    @classmethod
    def _patterns_have_a_keyspace(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            if "." not in pattern:
                raise ValueError(f"`{pattern}` is not a keyspace.table pattern; did you mean `{pattern}.*`?")
        return patterns


class ColumnsConfig(_Model):
    """Which columns and rows leave the ring, and how. Beside the keys below there are `column.mask.hash.<algorithm>.with.salt`,
    `column.mask.with.<n>.chars` and `column.truncate.to.<n>.chars`. Patterns are regular expressions for the whole of
    keyspace.table.column, as a list or separated by commas."""

    include: list[str] = Field(default=[], alias="column.include.list", description="Only these columns, and all keys.")
    exclude: list[str] = Field(default=[], alias="column.exclude.list", description="All columns but these.")
    hashes: dict[str, list[str]] = Field(default={}, description="Columns that are hashed, by algorithm.")
    masks: dict[int, list[str]] = Field(default={}, description="Columns that become asterisks, by how many.")
    cuts: dict[int, list[str]] = Field(default={}, description="Texts that are cut, by how many characters stay.")
    salt: SecretStr | None = Field(default=None, description="Salt of the hashes; write ${NAME} and set it in the environment.")
    rows: dict[str, str] = Field(
        default={}, description="By keyspace.table which rows leave: a Python expression such as `region == 'eu' and total > 3`."
    )

    @model_validator(mode="before")
    @classmethod
    def _gathers_by_number(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        plain: dict[str, Any] = {}
        for key, value in given.items():
            where, found = next(((name, m[1]) for name, each in _BY_NUMBER.items() if (m := each.fullmatch(str(key)))), (key, None))
            value = [each.strip() for each in value.split(",")] if isinstance(value, str) and str(key).startswith("column.") else value
            if found is None:
                plain[where] = value
            else:
                plain[where] = {**plain.get(where, {}), found: value}
        return plain

    @field_validator("include", "exclude")
    @classmethod
    def _are_patterns(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"`{pattern}` is no regular expression: {error}") from error
        return patterns

    @field_validator("hashes", "masks", "cuts")
    @classmethod
    def _hold_patterns(cls, by_number: dict[Any, list[str]]) -> dict[Any, list[str]]:
        for patterns in by_number.values():
            cls._are_patterns(patterns)
        return {masking.algorithm(key) if isinstance(key, str) else key: patterns for key, patterns in by_number.items()}

    @field_validator("rows")
    @classmethod
    def _are_filters(cls, rows: dict[str, str]) -> dict[str, str]:
        for text in rows.values():
            masking.parse_filter(text)
        return rows

    @model_validator(mode="after")
    def _fits_together(self) -> ColumnsConfig:
        if self.include and self.exclude:
            raise ValueError("column.include.list and column.exclude.list exclude each other")
        if self.hashes and (self.salt is None or not self.salt.get_secret_value()):
            raise ValueError("hashes need a `salt`: write ${NAME} and set it in the environment")
        return self

    @property
    def rules(self) -> masking.Rules:
        """The same for the core."""
        salt = self.salt.get_secret_value() if self.salt else ""
        return masking.Rules(self.include, self.exclude, self.hashes, self.masks, self.cuts, self.rows, salt)


_BY_NUMBER = {
    "hashes": re.compile(r"column\.mask\.hash(?:\.v2)?\.([\w-]+)\.with\.salt"),
    "masks": re.compile(r"column\.mask\.with\.(\d+)\.chars"),
    "cuts": re.compile(r"column\.truncate\.to\.(\d+)\.chars"),
}


class CatalogConfig(_Model):
    """The Iceberg catalog that the warehouse tables live in."""

    name: str = Field(default="lake", description="Name of the catalog in Spark SQL.", pattern=r"^[a-z][a-z0-9_]*$")
    type: Literal["jdbc", "rest", "hive"] = Field(
        default="jdbc",
        description="jdbc: any JDBC database; SQLite by default. rest, hive: a catalog server of that kind (tests hold what Spark is told; "
        "no server of either has been run).",
    )
    uri: str = Field(
        description="Where the catalog is: jdbc:sqlite:/var/lib/writetime/catalog.db, https://catalog.example/api, thrift://metastore:9083."
    )
    warehouse: str = Field(
        description="Folder or bucket URL under which the tables' files lie; with rest, what its server calls the warehouse."
    )
    options: dict[str, str] = Field(
        default={}, description="Further properties of the catalog, by Iceberg's own names (io-impl, jdbc.user, scope, …)."
    )
    secrets: dict[str, SecretStr] = Field(
        default={}, description="The like, whose values are not for everybody (jdbc.password, credential, token); write ${NAME}."
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> CatalogConfig:
        schemes = {"jdbc": ("jdbc:",), "rest": ("http://", "https://"), "hive": ("thrift://",)}[self.type]
        if not self.uri.startswith(schemes):
            raise ValueError(f"uri of a catalog of type {self.type} begins with {' or '.join(schemes)}")
        if taken := sorted({"type", "uri", "warehouse"} & (self.options.keys() | self.secrets.keys())):
            raise ValueError(f"{', '.join(taken)}: has a key of its own")
        return self


class EventsConfig(_Model):
    """What the stream of changes tells."""

    versions: Literal["each", "last"] = Field(
        default="each",
        description="each: an event per distinct version of a row, in writetime order. last: one per row and batch, from what was to what "
        "is.",
    )
    deletes: Literal["rows", "one"] = Field(
        default="rows",
        description="rows: a range or partition delete is an event per row that it took. one: it is one event, whose key holds the prefix, "
        "without rows.",
    )
    shape: Literal["flat", "cells"] = Field(
        default="flat",
        description="flat: a column of a row is its value. cells: it is {value, deletion_ts, set, writetime}, in Kafka; the changes tables "
        "keep writetimes and expiries for that.",
    )


class WarehouseConfig(_Model):
    """How the tables of current rows are kept."""

    cell_facts: Literal["map", "struct", "none"] = Field(
        default="map",
        description="Writetime (µs) and expiry (s) of a row's columns, in `_writetime` and `_expires_at`: as maps by column name, as "
        "structs with a field per column, or not at all. Of a collection the latest writetime and the earliest expiry. A table stays "
        "as it was made.",
    )
    writes: Literal["merge-on-read", "copy-on-write"] = Field(
        default="merge-on-read",
        description="merge-on-read: a batch writes what it changes, and readers put it together. copy-on-write: a batch writes each file "
        "anew of which it changes a row.",
    )
    compact: bool = Field(
        default=True, description="Maintenance puts small files together and applies deletes; current rows are sorted by their key then."
    )
    keep_snapshots_days: float | None = Field(
        default=7.0,
        ge=0,
        description="Maintenance lets snapshots go that are older, and the files that only they need; null: none. Who reads an older one, "
        "as a query that runs for days, fails.",
    )
    keep_snapshots: int = Field(default=20, ge=1, description="The latest snapshots, which stay however old they are.")
    most_snapshots: int | None = Field(
        default=1000,
        ge=1,
        description="Maintenance expires snapshots beyond this number too, but none of the last hour: each commit writes the list "
        "of all of them. null: only `keep_snapshots_days` counts. Nothing is expired where that is null.",
    )


class ArchiveConfig(_Model):
    """What becomes of segments that were taken in, and of what is noted of them. cdc_maintain sees to it, days after the batch."""

    compress_after_days: float | None = Field(
        default=1.0,
        ge=0,
        description="Segments that their nodes finished so long ago are packed, each as one Zstandard frame (`<name>.zst`); null: never.",
    )
    compression_level: int = Field(default=3, ge=1, le=22, description="Zstandard's level: higher is smaller, and slower.")
    keep_days: float | None = Field(
        default=None,
        ge=1,
        description="Older segments are let go; null: none, ever. What is gone cannot be replayed, nor tables rebuilt from it, and a "
        "TRUNCATE that becomes known later than that is not followed.",
    )
    keep_ledger_days: float | None = Field(
        default=None,
        ge=1,
        description="Ledger entries of older segments are removed, where the archive has let these go; null: none. Of a segment without an "
        "entry, a copy that its node ships late is taken in again.",
    )
    keep_batches_days: float | None = Field(
        default=None,
        ge=7,
        description="Documents of older batches (manifest, schema, seal) are removed, as far as nobody needs them; null: none. The last "
        "1000 batches stay, and what is not yet published.",
    )
    keep_reports_days: float | None = Field(
        default=90.0,
        ge=2,
        description="Older reports of cdc_verify and cdc_audit, but for the last of each, settled pieces of quarantine, and what shippers "
        "told of space are removed; null: none.",
    )
    keep_claims_days: float | None = Field(
        default=None,
        ge=1,
        description="Events that were too large for their topic (`kafka.oversized: claim-check`) are removed from the bucket so many days "
        "after they were put there; null: never. No less than the topics keep records: a record without its object is a claim on nothing.",
    )
    minutes_per_run: float = Field(default=60.0, gt=0, description="How long a run packs and removes at most; the next goes on there.")

    @model_validator(mode="after")
    def _entries_outlive_segments(self) -> ArchiveConfig:
        if self.keep_ledger_days is not None and (self.keep_days is None or self.keep_ledger_days < self.keep_days):
            raise ValueError("the ledger is kept as long as the archive: keep_ledger_days needs a keep_days that is no longer")
        return self


class KafkaConfig(_Model):
    """Where change events go."""

    bootstrap_servers: str = Field(alias="bootstrap.servers", description="host:port, comma separated.")
    topic_prefix: str = Field(
        alias="topic.prefix", description="Topics are <topic.prefix>.<keyspace>.<table>.", pattern=r"^[A-Za-z0-9._-]+$"
    )
    publishers: int = Field(
        default=2, ge=1, le=64, description="Fixed number of transactional publishers; each owns its share of the keys."
    )
    partitions: int = Field(default=4, ge=1, description="Partitions of a topic that writetime creates.")
    replication_factor: int = Field(
        default=-1,
        ge=-1,
        alias="replication.factor",
        description="Replication factor of a topic that writetime creates; -1: the broker's own.",
    )
    tombstones_on_delete: bool = Field(
        default=True, alias="tombstones.on.delete", description="A delete event is followed by a null record."
    )
    skipped_operations: list[Literal["c", "u", "d", "t"]] = Field(
        default=[],
        alias="skipped.operations",
        description="Operations (`op`) whose events are not sent; the changes tables have them. A compacted topic takes no `t`.",
    )
    format: Literal["json", "json-schema", "avro"] = Field(
        default="json",
        description="json: plain. json-schema: with a Kafka Connect schema in each record. avro: Confluent's wire format, by a registry.",
    )
    decimal_handling_mode: Literal["string", "precise", "double"] = Field(
        default="string",
        alias="decimal.handling.mode",
        description="What varint and decimal become. string: their digits, exact. precise: {scale, value} as Debezium's "
        "VariableScaleDecimal. double: the nearest.",
    )
    oversized: Literal["wait", "claim-check", "quarantine"] = Field(
        default="claim-check",
        description="What becomes of an event that is larger than a message may be. claim-check: it lies in the bucket, and an event "
        "without rows says where. quarantine: it lies in the quarantine, and is not sent. wait: its table waits, others go on.",
    )
    include_schema_changes: bool = Field(
        default=True, alias="include.schema.changes", description="DDL of captured tables is told on the topic <topic.prefix>."
    )
    heartbeat_interval_ms: int = Field(
        default=0,
        ge=0,
        alias="heartbeat.interval.ms",
        description="How often, at most, a run of publishing sends a heartbeat, whether there are events or not; 0: never.",
    )
    heartbeat_topics_prefix: str = Field(
        default="__debezium-heartbeat",
        alias="topic.heartbeat.prefix",
        description="Heartbeats go to <topic.heartbeat.prefix>.<topic.prefix>.",
        pattern=r"^[A-Za-z0-9._-]+$",
    )
    headers: bool = Field(default=True, description="Records have the headers writetime.table, writetime.op and writetime.sequence.")
    schema_registry_url: str | None = Field(
        default=None,
        alias="schema.registry.url",
        description="Base URL of the registry's Confluent API. Subjects are <topic>-key and <topic>-value.",
        pattern=r"^https?://[^@\s]+$",
    )
    schema_registry_user_info: SecretStr | None = Field(
        default=None,
        alias="schema.registry.basic.auth.user.info",
        description="user:password for the registry; write ${NAME} and set it in the environment.",
    )
    schema_registry_ca: Path | None = Field(
        default=None, alias="schema.registry.ssl.ca.location", description="PEM of the authorities trusted for the registry."
    )
    schema_registry_certificate: Path | None = Field(
        default=None, alias="schema.registry.ssl.certificate.location", description="PEM of our own certificate for the registry."
    )
    schema_registry_key: Path | None = Field(
        default=None, alias="schema.registry.ssl.key.location", description="Its private key; default: in the certificate's file."
    )
    producer: dict[str, str | int | bool] = Field(
        default={}, repr=False, description="librdkafka producer options, passed through (TLS, SASL, tuning)."
    )

    @model_validator(mode="after")
    def _avro_has_a_registry(self) -> KafkaConfig:
        if self.format == "avro" and self.schema_registry_url is None:
            raise ValueError("`format: avro` needs `schema.registry.url`")
        return self


class FilesConfig(_Model):
    """Events as Avro files, where no broker is wanted, or beside one."""

    url: str = Field(description="gs://…, s3://… or a folder: <url>/<keyspace>.<table>/<batch>-….avro, <url>/_published.json.")
    decimal_handling_mode: Literal["string", "precise", "double"] = Field(
        default="string", alias="decimal.handling.mode", description="What varint and decimal become, as in `kafka`."
    )


class QuarantineConfig(_Model):
    """Who is told, beside the bucket, of what could not be used: segments and frames, and events that are too large to be sent."""

    table: bool = Field(default=True, description="Where there is a `catalog`, its table _writetime.quarantine has a row for each piece.")
    topic: bool = Field(default=True, description="Where there is `kafka`, the topic <topic.prefix>.__quarantine is told of each piece.")
    bytes: Literal["none", "captured"] = Field(
        default="none",
        description="Whether both have bytes, too. none: they say where in the bucket these lie. captured: those of whole frames, up to "
        "64 KiB, that hold nothing but captured tables of which `columns` keeps nothing inside.",
    )


class SparkConfig(_Model):
    """How Spark is started for the jobs."""

    master: str = Field(default="local[2]", description="Spark master, when the Airflow connection does not say.")
    shuffle_partitions: int = Field(default=4, ge=1, description="Partitions of the shuffle by key bucket.")
    conf: dict[str, str] = Field(default={}, description="Any Spark options, passed through.")
    submit: dict[str, str] = Field(
        default={},
        description="Options that spark-submit has to know before a job begins, which `conf` is too late for: spark.driver.memory, "
        "spark.archives, spark.pyspark.python, spark.kubernetes.*, spark.yarn.*. They stand in its command line and in the task's log: no "
        "secrets here.",
    )


class NotifierConfig(_Model):
    """One of Airflow's notifiers, such as those of its providers for mail or chat."""

    notifier: str = Field(
        description="Import path of its class: airflow.providers.smtp.notifications.smtp.SmtpNotifier.",
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
    )
    options: dict[str, Any] = Field(
        default={},
        description="Its arguments. Texts may hold Airflow's templates; `{{ told }}` is what has happened, where, why, what next.",
    )
    secrets: dict[str, SecretStr] = Field(default={}, description="Arguments that are not for everybody; write ${NAME}.")


class WatchConfig(_Model):
    """What cdc_watch is red for. The alert rules for Prometheus (deploy/prometheus/rules.yml) have the same limits."""

    schedule: str | None = Field(default="*/15 * * * *", description="Cron expression of cdc_watch (UTC); null: only when triggered.")
    late_minutes: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        default="auto",
        description="Minutes since a node has finished the newest of its segments that came. auto: the time in which the node, "
        "at its rate, fills half of its cdc_total_space, between 30 minutes and a day, or six hours if either is unknown; null: not "
        "looked at.",
    )
    space: Literal["warn", "alarm"] | None = Field(
        default="warn", description="From which level of a node's space on (`node.ship.warn_at`, `alarm_at`); null: not looked at."
    )
    settings: bool = Field(
        default=True,
        description="Whether it is red for nodes whose own settings make Cassandra drop captured writes (`cdc_enabled: false`, "
        "`cdc_block_writes: false`).",
    )
    stuck_minutes: float | None = Field(default=30, gt=0, description="Minutes that a batch may be open; null: not looked at.")
    backlog_segments: int | None = Field(
        default=2000, ge=1, le=2000, description="Segments that may wait in the bucket; null: not looked at."
    )
    unpublished_batches: int | None = Field(
        default=10, ge=1, le=60, description="Batches with events of a table that may be sealed and not in Kafka; null: not looked at."
    )


class AirflowConfig(_Model):
    """How the DAGs are scheduled and to whom they belong."""

    owner: str = Field(default="writetime", description="Owner of the DAGs.")
    pool: str | None = Field(
        default=None, min_length=1, description="Airflow's pool that all tasks take a slot of; null: its default_pool. It has to be there."
    )
    spark_pool: str | None = Field(
        default=None,
        min_length=1,
        description="The pool of the tasks that run a Spark job; null: `pool`. Pipelines that name the same one share its slots.",
    )
    spark_connection: str = Field(
        default="spark_writetime", min_length=1, description="Airflow's connection of type `spark` that says where the jobs run."
    )
    job_hours: float = Field(
        default=24.0,
        gt=0,
        description="Hours after which a task's job is ended, and tried again: one that hangs would hold up all that follow. What takes "
        "longer (a reading of a huge table) goes on where it was.",
    )
    ingest_schedule: str | None = Field(default="* * * * *", description="Cron expression of cdc_ingest (UTC); null: only when triggered.")
    publish_fallback: str | None = Field(
        default="*/5 * * * *", description="Cron expression (UTC) of cdc_publish besides the seal of each batch; null: none."
    )
    bootstrap_schedule: str | None = Field(
        default="*/10 * * * *",
        description="Cron expression (UTC) by which cdc_bootstrap looks for tables that are due and rows to be read again; null: only when "
        "triggered.",
    )
    maintain_schedule: str | None = Field(
        default="17 3 * * *", description="Cron expression of cdc_maintain (UTC); null: only when triggered."
    )
    verify_schedule: str | None = Field(
        default=None, description="Cron expression of cdc_verify (UTC), which needs cluster.cql; null: only when triggered."
    )
    audit_schedule: str | None = Field(default=None, description="Cron expression of cdc_audit (UTC); null: only when triggered.")
    watch: WatchConfig = WatchConfig()
    on_failure: list[NotifierConfig] = Field(
        default=[], description="Who is told when a task of any of the DAGs has failed for good, that is, after its retries."
    )


class FillerConfig(_Model):
    """For nodes of Cassandra 3.11: writes that fill the commit log of a quiet node, so that its segments are finished."""

    table: str = Field(
        description="keyspace.table that takes them, with `key int PRIMARY KEY, filler blob`, a default_time_to_live and without cdc, in a "
        "keyspace with one replica in one datacenter.",
        pattern=r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$",
    )
    every_seconds: float = Field(default=300.0, gt=0, description="How often; not if a segment was shipped since the last time.")
    segment_size: ByteSize = Field(
        default=ByteSize(32 << 20), gt=0, description="What is written each time: the node's commitlog_segment_size (32 MiB by default)."
    )

    @property
    def keyspace(self) -> str:
        return self.table.partition(".")[0]

    @property
    def name(self) -> str:
        return self.table.partition(".")[2]


class ShipConfig(_Model):
    """How the shipper stays out of the node's way, and what it does when space gets short. Sizes in bytes, or as text: 4GiB, 500MB."""

    cdc_total_space: ByteSize | None = Field(
        default=None,
        gt=0,
        description="The node's setting of that name; absent: asked of the node, else Cassandra's default (4 GiB, at most an eighth of the "
        "disk).",
    )
    warn_at: float = Field(default=0.5, gt=0, le=1, description="Share of cdc_total_space in use from which on the rate limit is lifted.")
    alarm_at: float = Field(
        default=0.8, gt=0, le=1, description="Share in use from which on it is an alarm, and files are spilled if that is wanted."
    )
    disk_reserve: ByteSize | None = Field(
        default=None,
        description="Free bytes on the disk of cdc_raw below which it is an alarm, and nothing is spilled; below twice as many, a warning. "
        "Default: 1 GiB for both, but nothing is spilled into the last 15 % of the disk.",
    )
    rate: ByteSize | None = Field(
        default=None, gt=0, description="Bytes a second, on average over some segments, that are shipped at most while there is space."
    )
    when_store_is_down: Literal["keep", "spill"] = Field(
        default="spill",
        description="What becomes of completed segments at an alarm while the store is down. spill: they are renamed into spill_dir, which "
        "frees cdc_total_space without a copy, and are shipped from there; once disk_reserve is reached, Cassandra refuses CDC writes. "
        "keep: they stay, and it does so when cdc_total_space is full. Neither deletes anything.",
    )
    spill_dir: Path | None = Field(
        default=None,
        description="Folder on the file system and mount of cdc_raw, outside of it; default: `spill` in the shipper's state_dir. If it is "
        "changed, what lies in the earlier one is shipped from there.",
    )
    after_crash_seconds: float = Field(
        default=300.0,
        ge=0,
        description="How long a segment that is not completed, and that no process holds open for writing, is left to its node, which "
        "completes most such segments when it starts again. Then it is shipped as it is.",
    )
    tail_seconds: float | None = Field(
        default=None,
        gt=0,
        description="How often what has been synced of a segment that still grows is shipped as a part; null: segments are shipped when "
        "they are finished, and only then. Every byte then goes up twice, and each interval makes an object a node.",
    )
    filler: FillerConfig | None = Field(
        default=None,
        description="Absent: nothing is ever written to the node. Of use with Cassandra 3.11 only, which moves a segment into cdc_raw when "
        "it is full; later versions have tails. Needs node.address.",
    )
    listen: str | None = Field(
        default="127.0.0.1:9464",
        description="host:port of /metrics (Prometheus) and /healthz; null: none. With --once and --drain there is none.",
        pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}$",
    )
    nice: int = Field(default=10, ge=0, le=19, description="Added to the process's niceness, which sets its share of the disk too.")

    @model_validator(mode="after")
    def _warns_before_it_alarms(self) -> ShipConfig:
        if self.warn_at > self.alarm_at:
            raise ValueError(f"warn_at ({self.warn_at}) is above alarm_at ({self.alarm_at})")
        return self


class TlsConfig(_Model):
    """TLS to the node (client_encryption_options). All files are PEM."""

    ca: Path | None = Field(default=None, description="Certificates of the authorities that are trusted; default: the system's.")
    certificate: Path | None = Field(default=None, description="Our own certificate, where the node asks for one.")
    key: Path | None = Field(default=None, description="Its private key; default: in the file of the certificate.")
    key_password: SecretStr | None = Field(default=None, description="The key's password; write ${NAME} and set it in the environment.")
    server_name: str | None = Field(default=None, description="Name that the node's certificate must have; default: node.address.")

    @model_validator(mode="after")
    def _a_key_has_its_certificate(self) -> TlsConfig:
        if self.certificate is None and (self.key is not None or self.key_password is not None):
            raise ValueError("a key without a certificate")
        return self


class NodeConfig(_Model):
    """What the shipper has to know of its node. Only the shipper reads this part."""

    cdc_raw: Path = Field(description="The node's cdc_raw_directory.")
    host_id: str | None = Field(default=None, description="Host id; asked of the node when absent.")
    datacenter: str | None = Field(default=None, description="Datacenter; asked of the node when absent.")
    address: str | None = Field(default=None, description="CQL address of this very node; without it nothing is asked of the node.")
    connect: bool = Field(default=True, description="false: do not ask the node; all that is needed is in this file.")
    port: int = Field(default=9042, ge=1, le=65535, description="CQL port.")
    username: str | None = Field(default=None, description="CQL user.")
    password: SecretStr | None = Field(default=None, description="CQL password; write ${NAME} and set it in the environment.")
    tls: TlsConfig | None = Field(default=None, description="Absent: not encrypted. `{}` trusts the system's authorities.")
    schema_file: Path | None = Field(default=None, description="A schema snapshot to ship when the node cannot be asked.")
    state_dir: Path | None = Field(default=None, description="Where the shipper notes what the node told it last; default: beside cdc_raw.")
    poll_seconds: float = Field(default=5.0, gt=0, description="Pause between two looks at cdc_raw.")
    ship: ShipConfig = ShipConfig()

    @property
    def state(self) -> Path:
        """The shipper's own folder on the node."""
        return self.state_dir or self.cdc_raw.parent / f"{self.cdc_raw.name}.writetime"

    @property
    def spill(self) -> Path:
        """Where completed segments are put aside."""
        return self.ship.spill_dir or self.state / "spill"


class PipelineConfig(_Model):
    """A pipeline: one ring, one bucket, one warehouse, one topic prefix."""

    pipeline: Annotated[str, Field(description="Name of the pipeline, used in DAG ids, pools and metrics.", pattern=r"^[a-z][a-z0-9_]*$")]
    cluster: ClusterConfig
    bucket: str = Field(
        description="gs://bucket[/prefix], s3://bucket[/prefix], s3+https://host[:port]/bucket[/prefix] (a service other than Amazon's) "
        "or a folder: segments, archive, state, ledger, quarantine."
    )
    state: str | None = Field(default=None, description="Folder or URL under which the state shards lie; default: the bucket.")
    tables: TablesConfig = TablesConfig()
    catalog: CatalogConfig | None = Field(default=None, description="Needed by the jobs, not by the shipper.")
    warehouse: WarehouseConfig = WarehouseConfig()
    archive: ArchiveConfig = ArchiveConfig()
    columns: ColumnsConfig = ColumnsConfig()
    events: EventsConfig = EventsConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    kafka: KafkaConfig | None = Field(default=None, description="Absent: events go to `files`.")
    files: FilesConfig | None = Field(
        default=None,
        description="Events as Avro files. Absent: in `events/<cluster>/` of the bucket where there is no `kafka`, else none; null: none "
        "in any case.",
    )
    quarantine: QuarantineConfig = QuarantineConfig()
    spark: SparkConfig = SparkConfig()
    airflow: AirflowConfig = AirflowConfig()
    node: NodeConfig | None = Field(default=None, description="Needed by the shipper only.")
    buckets: int = Field(default=1, ge=1, le=4096, description="State shards of a table that is new.")
    segments_per_batch: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Segments that a batch takes in at most, the oldest first: how much of an outage's backlog Spark gets to do at once.",
    )

    largest_segment: ByteSize = Field(
        default=ByteSize(2 << 30),
        gt=0,
        description="Objects in `cdc/` with more bytes are not taken into batches: a worker has a segment in memory. `writetime status` "
        "lists them as ignored, and what they may hold is purged from no state.",
    )

    def beside(self, namespace: str) -> PipelineConfig:
        """The pipeline as replays into a namespace of their own have it: with batches and a state of their own, of which nothing but the
        warehouse tells."""
        cluster = self.cluster.model_copy(update={"name": layout.beside(self.cluster.name, namespace), "cql": None})
        return self.model_copy(update={"cluster": cluster, "kafka": None, "files": None})

    def state_url(self, name: str) -> str:
        """Where what `names` calls so lies, of the state."""
        return f"{(self.state or self.bucket).rstrip('/')}/{name}"


def load(path: str | Path) -> PipelineConfig:
    """Read and validate a pipeline's YAML. ConfigError says which key of which file is wrong, and why."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", operation="read the configuration", obj=str(path)) from error
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", operation="read the configuration", obj=str(path)) from error
    if not isinstance(raw, dict):
        raise ConfigError("is no mapping of keys", operation="read the configuration", obj=str(path))
    try:
        config = PipelineConfig.model_validate(_substitute(raw, str(path), ""))
    except ValidationError as error:
        raise ConfigError(_explain(error), operation="check the configuration", obj=str(path)) from error
    return _absolute(config, path.resolve().parent)


def example_environment(path: str | Path) -> list[str]:
    """Names of the environment variables that the file asks for, in order of appearance."""
    return list(dict.fromkeys(_VARIABLE.findall(Path(path).read_text(encoding="utf-8"))))


def _substitute(value: Any, path: str, key: str) -> Any:
    if isinstance(value, dict):
        return {k: _substitute(v, path, f"{key}.{k}".lstrip(".")) for k, v in value.items()}
    if isinstance(value, list):
        return [_substitute(v, path, f"{key}[{i}]") for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigError(
                f"`{key}` needs the environment variable {match[1]}, which is not set",
                operation="check the configuration",
                obj=path,
                hint=f"Set {match[1]}, or write the value into the file if it is no secret.",
            )
        return found

    return _VARIABLE.sub(replace, value)


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False):
        key = ".".join(str(piece) for piece in problem["loc"]) or "the file"
        message = "is not a known key" if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        lines.append(f"`{key}`: {message}")
    return "; ".join(lines)


def _absolute(config: PipelineConfig, base: Path) -> PipelineConfig:
    """Resolve folders against the file's own, so that every process agrees whatever its working directory."""

    def folder(text: str) -> str:
        if "://" in text and not text.startswith("file://"):
            return text
        return str((base / text.removeprefix("file://")).resolve())

    update: dict[str, Any] = {"bucket": folder(config.bucket), "state": folder(config.state or config.bucket)}
    if config.cluster.commitlog_keystore is not None:
        keystore = (base / config.cluster.commitlog_keystore).resolve()
        update["cluster"] = config.cluster.model_copy(update={"commitlog_keystore": keystore})
    if (cql := config.cluster.cql) is not None and cql.tls is not None:
        files = {name: (base / path).resolve() for name in ("ca", "certificate", "key") if (path := getattr(cql.tls, name)) is not None}
        cluster = update.get("cluster", config.cluster)
        update["cluster"] = cluster.model_copy(update={"cql": cql.model_copy(update={"tls": cql.tls.model_copy(update=files)})})
    if config.catalog is not None and config.catalog.type != "rest":
        update["catalog"] = config.catalog.model_copy(update={"warehouse": folder(config.catalog.warehouse)})
    if config.files is not None:
        update["files"] = config.files.model_copy(update={"url": folder(config.files.url)})
    elif config.kafka is None and "files" not in config.model_fields_set:
        # Events come out without any service, unless somebody wants none.
        update["files"] = FilesConfig(url=f"{update['bucket'].rstrip('/')}/{layout.events_prefix(config.cluster.name).rstrip('/')}")
    if config.kafka is not None:
        files = {name: getattr(config.kafka, f"schema_registry_{name}") for name in ("ca", "certificate", "key")}
        given = {f"schema_registry_{name}": (base / path).resolve() for name, path in files.items() if path is not None}
        update["kafka"] = config.kafka.model_copy(update=given)
    if config.node is not None:
        paths = {name: getattr(config.node, name) for name in ("cdc_raw", "schema_file", "state_dir")}
        absolute: dict[str, Any] = {name: (base / path).resolve() for name, path in paths.items() if path is not None}
        if config.node.ship.spill_dir is not None:
            absolute["ship"] = config.node.ship.model_copy(update={"spill_dir": (base / config.node.ship.spill_dir).resolve()})
        if (tls := config.node.tls) is not None:
            files = {name: path for name in ("ca", "certificate", "key") if (path := getattr(tls, name)) is not None}
            absolute["tls"] = tls.model_copy(update={name: (base / path).resolve() for name, path in files.items()})
        update["node"] = config.node.model_copy(update=absolute)
    return config.model_copy(update=update)
