"""The configuration of a pipeline: one YAML file, read by the shipper, the jobs and the DAGs.

Strategy: pydantic models define the keys and reject unknown ones; `load` reports all errors as one
ConfigError with file and keys. `${NAME}` in a string is replaced from the environment, so that secrets stay
out of the file; an unset variable is an error. Relative paths refer to the file's folder. Must not know a
store or a service.
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
    """The captured cluster."""

    name: str = Field(description="Name of the cluster, as in the nodes' configuration (cluster_name).", min_length=1)
    datacenters: list[str] = Field(description="Datacenters whose nodes ship their segments.", min_length=1)
    commitlog_keystore: Path | None = Field(
        default=None,
        description="Keystore (JCEKS or PKCS12) with the keys of encrypted commit logs, a file on every worker. Its "
        "password is read there from WRITETIME_KEYSTORE_PASSWORD, the password of a key from "
        "WRITETIME_KEYSTORE_KEY_PASSWORD.",
    )
    cql: CqlConfig | None = Field(default=None, description="CQL connection for reading tables; absent: no tables are read.")


class CqlConfig(_Model):
    """CQL connection for reading tables. Every worker reads the password from WRITETIME_CQL_PASSWORD, that of
    a private key from WRITETIME_CQL_KEY_PASSWORD: neither is part of the configuration or sent to workers."""

    contact_points: list[str] = Field(description="Addresses of some nodes.", min_length=1)
    port: int = Field(default=9042, ge=1, le=65535, description="CQL port.")
    username: str | None = Field(default=None, description="CQL user; needs SELECT on captured tables only.")
    tls: CqlTlsConfig | None = Field(default=None, description="Absent: not encrypted. `{}` trusts the system's authorities.")
    request_seconds: float = Field(default=60.0, gt=0, description="How long one page may take.")


class CqlTlsConfig(_Model):
    """TLS to the cluster. All files are PEM, on every worker."""

    ca: Path | None = Field(default=None, description="Certificates of the authorities that are trusted; default: the system's.")
    certificate: Path | None = Field(default=None, description="Client certificate, if the cluster requires one.")
    key: Path | None = Field(default=None, description="Its private key; default: in the file of the certificate.")
    check_hostname: bool = Field(default=True, description="Whether a node's certificate must match the address of the connection.")


class SnapshotConfig(_Model):
    """Reading tables from the cluster, for rows that are not in a log."""

    mode: Literal["initial", "always", "never"] = Field(
        default="initial",
        description="initial: a captured table is read once, automatically. always: also each time its cdc is switched on "
        "again. never: on request only.",
    )
    consistency: Literal["ALL", "EACH_QUORUM", "QUORUM", "LOCAL_QUORUM", "ONE", "LOCAL_ONE"] = Field(
        default="ALL",
        description="Below ALL a read may miss an existing row; rows that a read does not return stay unchanged.",
    )
    events: Literal["r", "none"] = Field(default="r", description="r: rows that were read become events with op r. none: no events.")
    ranges: int = Field(default=64, ge=1, description="Minimum number of token ranges per table; a failed range is read again as a whole.")
    page_rows: int = Field(default=1000, ge=1, description="Rows per page.")
    rows_per_second: int | None = Field(default=None, ge=1, description="Maximum rows per second, over all workers.")
    readers: int = Field(default=2, ge=1, description="Maximum number of ranges read in parallel.")
    attempts: int = Field(default=8, ge=1, description="Attempts per page before its range fails.")
    margin_seconds: float = Field(
        default=10.0,
        ge=0,
        description="Writes this close to the start of a range's read are taken from the log: the clocks of clients and nodes differ.",
    )


class TablesConfig(_Model):
    """Which tables are captured. Only tables with `cdc = true`, now or before, can be."""

    include: list[str] = Field(default=["*.*"], description="keyspace.table patterns; `*` stands for any text.")
    exclude: list[str] = Field(default=[], description="Patterns that are excluded.")

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
    """Which columns and rows are published, and how. Further keys: `column.mask.hash.<algorithm>.with.salt`,
    `column.mask.with.<n>.chars` and `column.truncate.to.<n>.chars`. Patterns are regular expressions for the
    whole of keyspace.table.column, as a list or separated by commas."""

    include: list[str] = Field(default=[], alias="column.include.list", description="Only these columns, and all keys.")
    exclude: list[str] = Field(default=[], alias="column.exclude.list", description="All columns but these.")
    hashes: dict[str, list[str]] = Field(default={}, description="Columns that are hashed, by algorithm.")
    masks: dict[int, list[str]] = Field(default={}, description="Columns replaced by asterisks, by number of asterisks.")
    cuts: dict[int, list[str]] = Field(default={}, description="Texts that are truncated, by number of characters kept.")
    salt: SecretStr | None = Field(default=None, description="Salt of the hashes; write ${NAME} and set it in the environment.")
    rows: dict[str, str] = Field(
        default={}, description="Filter of published rows by keyspace.table: a Python expression such as `region == 'eu' and total > 3`."
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
                raise ValueError(f"`{pattern}` is not a regular expression: {error}") from error
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
        """The rules as the library takes them."""
        salt = self.salt.get_secret_value() if self.salt else ""
        return masking.Rules(self.include, self.exclude, self.hashes, self.masks, self.cuts, self.rows, salt)


_BY_NUMBER = {
    "hashes": re.compile(r"column\.mask\.hash(?:\.v2)?\.([\w-]+)\.with\.salt"),
    "masks": re.compile(r"column\.mask\.with\.(\d+)\.chars"),
    "cuts": re.compile(r"column\.truncate\.to\.(\d+)\.chars"),
}


class CatalogConfig(_Model):
    """The Iceberg catalog of the warehouse tables."""

    name: str = Field(default="lake", description="Name of the catalog in Spark SQL.", pattern=r"^[a-z][a-z0-9_]*$")
    type: Literal["jdbc", "rest", "hive"] = Field(
        default="jdbc",
        description="jdbc: any JDBC database; SQLite by default. rest, hive: a catalog server of that kind (tests check "
        "Spark's settings; neither server was tested).",
    )
    uri: str = Field(
        description="Address of the catalog: jdbc:sqlite:/var/lib/writetime/catalog.db, https://catalog.example/api, "
        "thrift://metastore:9083."
    )
    warehouse: str = Field(description="Folder or bucket URL of the tables' files; with rest, the server's name of the warehouse.")
    options: dict[str, str] = Field(
        default={}, description="Further properties of the catalog, by Iceberg's names (io-impl, jdbc.user, scope, …)."
    )
    secrets: dict[str, SecretStr] = Field(
        default={}, description="Further properties with secret values (jdbc.password, credential, token); write ${NAME}."
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
    """Content of change events."""

    versions: Literal["each", "last"] = Field(
        default="each",
        description="each: one event per distinct version of a row, in writetime order. last: one event per row and "
        "batch, from the old to the new version.",
    )
    deletes: Literal["rows", "one"] = Field(
        default="rows",
        description="rows: a range or partition delete becomes one event per deleted row. one: a single event without "
        "rows, whose key holds the prefix.",
    )
    shape: Literal["flat", "cells"] = Field(
        default="flat",
        description="flat: a column of a row is its value. cells: a column is {value, deletion_ts, set, writetime}, in "
        "Kafka only; the changes tables have columns for writetimes and expiries.",
    )


class WarehouseConfig(_Model):
    """Layout and maintenance of the warehouse tables."""

    cell_facts: Literal["map", "struct", "none"] = Field(
        default="map",
        description="Writetime (µs) and expiry (s) of a row's columns, in `_writetime` and `_expires_at`: as maps by "
        "column name, as structs with a field per column, or not at all. For a collection, the latest "
        "writetime and the earliest expiry. Existing tables keep their format.",
    )
    writes: Literal["merge-on-read", "copy-on-write"] = Field(
        default="merge-on-read",
        description="merge-on-read: a batch writes its changes, and readers merge them. copy-on-write: a batch rewrites "
        "each file with a changed row.",
    )
    compact: bool = Field(default=True, description="Maintenance merges small files and applies deletes; it sorts current rows by key.")
    keep_snapshots_days: float | None = Field(
        default=7.0,
        ge=0,
        description="Maintenance expires older snapshots and deletes their files; null: never. Queries that read an expired snapshot fail.",
    )
    keep_snapshots: int = Field(default=20, ge=1, description="Number of latest snapshots that are kept regardless of age.")
    most_snapshots: int | None = Field(
        default=1000,
        ge=1,
        description="Maintenance also expires snapshots beyond this number, except those of the last hour: each commit "
        "writes the list of all snapshots. null: only `keep_snapshots_days` applies. If that is null, nothing "
        "is expired.",
    )


class ArchiveConfig(_Model):
    """Packing and retention of ingested segments and their documents, done by cdc_maintain days after the
    batch."""

    compress_after_days: float | None = Field(
        default=1.0,
        ge=0,
        description="Segments completed by their nodes this many days ago are packed, each as one Zstandard frame "
        "(`<name>.zst`); null: never.",
    )
    compression_level: int = Field(default=3, ge=1, le=22, description="Zstandard level: a higher one is smaller and slower.")
    keep_days: float | None = Field(
        default=None,
        ge=1,
        description="Older segments are deleted; null: never. Deleted segments cannot be replayed or used for a rebuild, "
        "and a TRUNCATE reported later than that is ignored.",
    )
    keep_ledger_days: float | None = Field(
        default=None,
        ge=1,
        description="Ledger entries of older segments are deleted, once the archive has deleted the segments; null: "
        "never. A late copy of a segment without an entry is ingested again.",
    )
    keep_batches_days: float | None = Field(
        default=None,
        ge=7,
        description="Documents of older batches (manifest, schema, seal) are deleted once they are no longer needed; "
        "null: never. The last 1000 batches and unpublished ones are kept.",
    )
    keep_reports_days: float | None = Field(
        default=90.0,
        ge=2,
        description="Older reports of cdc_verify and cdc_audit except the last of each, settled quarantine records, and "
        "the shippers' reports of disk space are deleted; null: never.",
    )
    keep_claims_days: float | None = Field(
        default=None,
        ge=1,
        description="Events stored in the bucket because they exceed the size limit (`kafka.oversized: claim-check`) are "
        "deleted after this many days; null: never. Keep them at least as long as the topics keep records, or "
        "a claim refers to a missing object.",
    )
    minutes_per_run: float = Field(
        default=60.0, gt=0, description="Maximum minutes of packing and deleting per run; the next run continues."
    )

    @model_validator(mode="after")
    def _entries_outlive_segments(self) -> ArchiveConfig:
        if self.keep_ledger_days is not None and (self.keep_days is None or self.keep_ledger_days < self.keep_days):
            raise ValueError("the ledger must be kept as long as the archive: set keep_days, not above keep_ledger_days")
        return self


class KafkaConfig(_Model):
    """Publishing of change events to Kafka."""

    bootstrap_servers: str = Field(alias="bootstrap.servers", description="host:port, comma separated.")
    topic_prefix: str = Field(
        alias="topic.prefix", description="Topics are <topic.prefix>.<keyspace>.<table>.", pattern=r"^[A-Za-z0-9._-]+$"
    )
    publishers: int = Field(default=2, ge=1, le=64, description="Fixed number of transactional publishers; each owns a share of the keys.")
    partitions: int = Field(default=4, ge=1, description="Partitions of a topic that writetime creates.")
    replication_factor: int = Field(
        default=-1,
        ge=-1,
        alias="replication.factor",
        description="Replication factor of a topic that writetime creates; -1: the broker's default.",
    )
    tombstones_on_delete: bool = Field(
        default=True, alias="tombstones.on.delete", description="A delete event is followed by a null record."
    )
    skipped_operations: list[Literal["c", "u", "d", "t"]] = Field(
        default=[],
        alias="skipped.operations",
        description="Operations (`op`) that are not published; the changes tables contain them. A compacted topic does not accept `t`.",
    )
    format: Literal["json", "json-schema", "avro"] = Field(
        default="json",
        description="json: plain. json-schema: with a Kafka Connect schema in each record. avro: Confluent's wire format, with a registry.",
    )
    decimal_handling_mode: Literal["string", "precise", "double"] = Field(
        default="string",
        alias="decimal.handling.mode",
        description="Format of varint and decimal. string: all digits, exact. precise: {scale, value} as Debezium's "
        "VariableScaleDecimal. double: the nearest double.",
    )
    oversized: Literal["wait", "claim-check", "quarantine"] = Field(
        default="claim-check",
        description="Handling of an event above the maximum message size. claim-check: it is stored in the bucket, and an "
        "event without rows refers to it. quarantine: it is quarantined and not sent. wait: its table waits, "
        "others continue.",
    )
    include_schema_changes: bool = Field(
        default=True, alias="include.schema.changes", description="DDL of captured tables is published to the topic <topic.prefix>."
    )
    heartbeat_interval_ms: int = Field(
        default=0,
        ge=0,
        alias="heartbeat.interval.ms",
        description="Minimum interval between heartbeats of a publishing run, with or without events; 0: no heartbeats.",
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
        default=None, alias="schema.registry.ssl.ca.location", description="PEM of the authorities that are trusted for the registry."
    )
    schema_registry_certificate: Path | None = Field(
        default=None, alias="schema.registry.ssl.certificate.location", description="PEM of the client certificate for the registry."
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
    """Events as Avro files, instead of Kafka or in addition."""

    url: str = Field(description="gs://…, s3://… or a folder: <url>/<keyspace>.<table>/<batch>-….avro, <url>/_published.json.")
    decimal_handling_mode: Literal["string", "precise", "double"] = Field(
        default="string", alias="decimal.handling.mode", description="Format of varint and decimal, as in `kafka`."
    )


class QuarantineConfig(_Model):
    """Where quarantine records (segments, frames, oversized events) are reported, besides the bucket."""

    table: bool = Field(default=True, description="With a `catalog`: its table _writetime.quarantine has a row per quarantine record.")
    topic: bool = Field(
        default=True, description="With `kafka`: each quarantine record is published to the topic <topic.prefix>.__quarantine."
    )
    bytes: Literal["none", "captured"] = Field(
        default="none",
        description="Whether both contain the bytes. none: the location in the bucket only. captured: bytes of whole "
        "frames up to 64 KiB that contain captured tables only, without columns hidden by `columns`.",
    )


class SparkConfig(_Model):
    """How Spark is started for the jobs."""

    master: str = Field(default="local[2]", description="Spark master, unless the Airflow connection defines it.")
    shuffle_partitions: int = Field(default=4, ge=1, description="Partitions of the shuffle by key bucket.")
    conf: dict[str, str] = Field(default={}, description="Spark options, passed through.")
    submit: dict[str, str] = Field(
        default={},
        description="Options that spark-submit needs before a job starts, when `conf` is too late: spark.driver.memory, "
        "spark.archives, spark.pyspark.python, spark.kubernetes.*, spark.yarn.*. They appear in the command "
        "line and the task log: no secrets here.",
    )


class NotifierConfig(_Model):
    """An Airflow notifier, such as those of the providers for mail or chat."""

    notifier: str = Field(
        description="Import path of the class: airflow.providers.smtp.notifications.smtp.SmtpNotifier.",
        pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$",
    )
    options: dict[str, Any] = Field(
        default={},
        description="Arguments. Strings may contain Airflow templates; `{{ told }}` is the report: what happened, where, why, next step.",
    )
    secrets: dict[str, SecretStr] = Field(default={}, description="Secret arguments; write ${NAME}.")


class WatchConfig(_Model):
    """Conditions that fail cdc_watch. The alert rules for Prometheus (deploy/prometheus/rules.yml) have the
    same limits."""

    schedule: str | None = Field(default="*/15 * * * *", description="Cron expression of cdc_watch (UTC); null: only when triggered.")
    late_minutes: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        default="auto",
        description="Minutes since a node completed its newest shipped segment. auto: the time in which the node, at its "
        "rate, fills half of its cdc_total_space, between 30 minutes and a day, or six hours if either is "
        "unknown; null: not checked.",
    )
    space: Literal["warn", "alarm"] | None = Field(
        default="warn", description="Level of a node's disk space (`node.ship.warn_at`, `alarm_at`) that fails the task; null: not checked."
    )
    settings: bool = Field(
        default=True,
        description="Whether to fail on nodes with settings that make Cassandra drop captured writes (`cdc_enabled: "
        "false`, `cdc_block_writes: false`).",
    )
    stuck_minutes: float | None = Field(default=30, gt=0, description="Maximum minutes that a batch may be open; null: not checked.")
    backlog_segments: int | None = Field(
        default=2000, ge=1, le=2000, description="Maximum number of segments waiting in the bucket; null: not checked."
    )
    unpublished_batches: int | None = Field(
        default=10, ge=1, le=60, description="Maximum number of sealed batches per table with events not yet in Kafka; null: not checked."
    )


class AirflowConfig(_Model):
    """Schedules and ownership of the DAGs."""

    owner: str = Field(default="writetime", description="Owner of the DAGs.")
    pool: str | None = Field(default=None, min_length=1, description="Airflow pool of all tasks; null: default_pool. The pool must exist.")
    spark_pool: str | None = Field(
        default=None,
        min_length=1,
        description="Airflow pool of tasks that run a Spark job; null: `pool`. Pipelines with the same pool share its slots.",
    )
    spark_connection: str = Field(
        default="spark_writetime", min_length=1, description="Airflow connection of type `spark` that defines where jobs run."
    )
    job_hours: float = Field(
        default=24.0,
        gt=0,
        description="Hours after which a task's job is killed and retried, so that a hanging job does not block others. A "
        "longer job (reading a huge table) resumes where it stopped.",
    )
    ingest_schedule: str | None = Field(default="* * * * *", description="Cron expression of cdc_ingest (UTC); null: only when triggered.")
    publish_fallback: str | None = Field(
        default="*/5 * * * *", description="Cron expression (UTC) of cdc_publish, in addition to the seal of each batch; null: none."
    )
    bootstrap_schedule: str | None = Field(
        default="*/10 * * * *",
        description="Cron expression (UTC) of cdc_bootstrap, which looks for tables that are due and rows to be read "
        "again; null: only when triggered.",
    )
    maintain_schedule: str | None = Field(
        default="17 3 * * *", description="Cron expression of cdc_maintain (UTC); null: only when triggered."
    )
    verify_schedule: str | None = Field(
        default=None, description="Cron expression of cdc_verify (UTC), which requires cluster.cql; null: only when triggered."
    )
    audit_schedule: str | None = Field(default=None, description="Cron expression of cdc_audit (UTC); null: only when triggered.")
    watch: WatchConfig = WatchConfig()
    on_failure: list[NotifierConfig] = Field(
        default=[], description="Notifiers that are called when a task of any DAG fails after its retries."
    )


class FillerConfig(_Model):
    """For Cassandra 3.11: writes that fill the commit log of an idle node, so that its segments are
    completed."""

    table: str = Field(
        description="keyspace.table for these writes, with `key int PRIMARY KEY, filler blob`, a default_time_to_live and "
        "no cdc, in a keyspace with one replica in one datacenter.",
        pattern=r"^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$",
    )
    every_seconds: float = Field(default=300.0, gt=0, description="Interval; no write if a segment was shipped since the last one.")
    segment_size: ByteSize = Field(
        default=ByteSize(32 << 20), gt=0, description="Bytes per write: the node's commitlog_segment_size (32 MiB by default)."
    )

    @property
    def keyspace(self) -> str:
        return self.table.partition(".")[0]

    @property
    def name(self) -> str:
        return self.table.partition(".")[2]


class ShipConfig(_Model):
    """Limits of the shipper, and what it does when disk space is short. Sizes in bytes, or as text: 4GiB,
    500MB."""

    cdc_total_space: ByteSize | None = Field(
        default=None,
        gt=0,
        description="The node's setting of this name; absent: read from the node, else Cassandra's default (4 GiB, at "
        "most an eighth of the disk).",
    )
    warn_at: float = Field(default=0.5, gt=0, le=1, description="Share of cdc_total_space in use at which the rate limit is lifted.")
    alarm_at: float = Field(
        default=0.8,
        gt=0,
        le=1,
        description="Share of cdc_total_space in use that is an alarm; files are spilled if `when_store_is_down` is spill.",
    )
    disk_reserve: ByteSize | None = Field(
        default=None,
        description="Free bytes on the disk of cdc_raw below which it is an alarm and nothing is spilled; below twice as "
        "many, a warning. Default: 1 GiB for both, but nothing is spilled into the last 15 % of the disk.",
    )
    rate: ByteSize | None = Field(
        default=None, gt=0, description="Maximum bytes per second, averaged over some segments, while disk space is sufficient."
    )
    when_store_is_down: Literal["keep", "spill"] = Field(
        default="spill",
        description="Handling of completed segments at an alarm while the store is unavailable. spill: they are renamed "
        "into spill_dir, which frees cdc_total_space without a copy, and are shipped from there; at "
        "disk_reserve, Cassandra refuses CDC writes. keep: they stay, and Cassandra refuses CDC writes when "
        "cdc_total_space is full. Neither deletes anything.",
    )
    spill_dir: Path | None = Field(
        default=None,
        description="Folder on the file system and mount of cdc_raw, outside of it; default: `spill` in state_dir. If it "
        "changes, segments in the old folder are shipped from there.",
    )
    after_crash_seconds: float = Field(
        default=300.0,
        ge=0,
        description="How long the shipper leaves to the node a segment that is not completed and not open for writing: "
        "the node completes most of them when it starts again. Then the segment is shipped as it is.",
    )
    tail_seconds: float | None = Field(
        default=None,
        gt=0,
        description="How often the synced bytes of a growing segment are shipped as a part; null: segments are shipped "
        "only when completed. With parts every byte is uploaded twice, and each interval creates an object "
        "per node.",
    )
    filler: FillerConfig | None = Field(
        default=None,
        description="Absent: nothing is written to the node. Useful with Cassandra 3.11 only, which moves a segment into "
        "cdc_raw when it is full; for later versions use tail_seconds. Requires node.address.",
    )
    listen: str | None = Field(
        default="127.0.0.1:9464",
        description="host:port of /metrics (Prometheus) and /healthz; null: none. Not used with --once and --drain.",
        pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}$",
    )
    nice: int = Field(default=10, ge=0, le=19, description="Niceness of the process, which also lowers its disk priority.")

    @model_validator(mode="after")
    def _warns_before_it_alarms(self) -> ShipConfig:
        if self.warn_at > self.alarm_at:
            raise ValueError(f"warn_at ({self.warn_at}) is above alarm_at ({self.alarm_at})")
        return self


class TlsConfig(_Model):
    """TLS to the node (client_encryption_options). All files are PEM."""

    ca: Path | None = Field(default=None, description="Certificates of the authorities that are trusted; default: the system's.")
    certificate: Path | None = Field(default=None, description="Client certificate, if the node requires one.")
    key: Path | None = Field(default=None, description="Its private key; default: in the file of the certificate.")
    key_password: SecretStr | None = Field(default=None, description="The key's password; write ${NAME} and set it in the environment.")
    server_name: str | None = Field(default=None, description="Expected name in the node's certificate; default: node.address.")

    @model_validator(mode="after")
    def _a_key_has_its_certificate(self) -> TlsConfig:
        if self.certificate is None and (self.key is not None or self.key_password is not None):
            raise ValueError("a key without a certificate")
        return self


class NodeConfig(_Model):
    """Settings of the node. Only the shipper reads this part."""

    cdc_raw: Path = Field(description="The node's cdc_raw_directory.")
    host_id: str | None = Field(default=None, description="Host id; read from the node if absent.")
    datacenter: str | None = Field(default=None, description="Datacenter; read from the node if absent.")
    address: str | None = Field(default=None, description="CQL address of this node; without it the node is not queried.")
    connect: bool = Field(default=True, description="false: do not query the node; this file holds all that is needed.")
    port: int = Field(default=9042, ge=1, le=65535, description="CQL port.")
    username: str | None = Field(default=None, description="CQL user.")
    password: SecretStr | None = Field(default=None, description="CQL password; write ${NAME} and set it in the environment.")
    tls: TlsConfig | None = Field(default=None, description="Absent: not encrypted. `{}` trusts the system's authorities.")
    schema_file: Path | None = Field(default=None, description="Schema snapshot to ship if the node cannot be queried.")
    state_dir: Path | None = Field(default=None, description="Folder of the shipper's own files; default: next to cdc_raw.")
    poll_seconds: float = Field(default=5.0, gt=0, description="Seconds between two scans of cdc_raw.")
    ship: ShipConfig = ShipConfig()

    @property
    def state(self) -> Path:
        """The shipper's own folder on the node."""
        return self.state_dir or self.cdc_raw.parent / f"{self.cdc_raw.name}.writetime"

    @property
    def spill(self) -> Path:
        """The folder of spilled segments."""
        return self.ship.spill_dir or self.state / "spill"


class PipelineConfig(_Model):
    """A pipeline: one cluster, one bucket, one warehouse, one topic prefix."""

    pipeline: Annotated[str, Field(description="Name of the pipeline, used in DAG ids, pools and metrics.", pattern=r"^[a-z][a-z0-9_]*$")]
    cluster: ClusterConfig
    bucket: str = Field(
        description="gs://bucket[/prefix], s3://bucket[/prefix], s3+https://host[:port]/bucket[/prefix] (a service other than Amazon's) "
        "or a folder: segments, archive, state, ledger, quarantine."
    )
    state: str | None = Field(default=None, description="Folder or URL of the state shards; default: the bucket.")
    tables: TablesConfig = TablesConfig()
    catalog: CatalogConfig | None = Field(default=None, description="Required by the jobs, not by the shipper.")
    warehouse: WarehouseConfig = WarehouseConfig()
    archive: ArchiveConfig = ArchiveConfig()
    columns: ColumnsConfig = ColumnsConfig()
    events: EventsConfig = EventsConfig()
    snapshot: SnapshotConfig = SnapshotConfig()
    kafka: KafkaConfig | None = Field(default=None, description="Absent: events go to `files`.")
    files: FilesConfig | None = Field(
        default=None,
        description="Events as Avro files. Absent: in `events/<cluster>/` of the bucket if there is no `kafka`, else none; null: none.",
    )
    quarantine: QuarantineConfig = QuarantineConfig()
    spark: SparkConfig = SparkConfig()
    airflow: AirflowConfig = AirflowConfig()
    node: NodeConfig | None = Field(default=None, description="Required by the shipper only.")
    buckets: int = Field(default=1, ge=1, le=4096, description="State shards of a new table.")
    segments_per_batch: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="Maximum segments per batch, oldest first: limits how much of a backlog Spark processes at once.",
    )

    largest_segment: ByteSize = Field(
        default=ByteSize(2 << 30),
        gt=0,
        description="Objects in `cdc/` with more bytes are not ingested: a worker holds a segment in memory. `writetime "
        "status` lists them as ignored, and tombstones that their writes may need are not purged.",
    )

    def shadow(self, namespace: str) -> PipelineConfig:
        """The configuration of replays into a shadow namespace: separate batches and state, and no output but
        the warehouse."""
        cluster = self.cluster.model_copy(update={"name": layout.shadow_chain(self.cluster.name, namespace), "cql": None})
        return self.model_copy(update={"cluster": cluster, "kafka": None, "files": None})

    def state_url(self, name: str) -> str:
        """The URL of an object of the state."""
        return f"{(self.state or self.bucket).rstrip('/')}/{name}"


def load(path: str | Path) -> PipelineConfig:
    """Read and validate a pipeline's YAML. ConfigError states the file, the key and the reason."""
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
        raise ConfigError("not a mapping of keys", operation="read the configuration", obj=str(path))
    try:
        config = PipelineConfig.model_validate(_substitute(raw, str(path), ""))
    except ValidationError as error:
        raise ConfigError(_explain(error), operation="check the configuration", obj=str(path)) from error
    return _absolute(config, path.resolve().parent)


def example_environment(path: str | Path) -> list[str]:
    """Names of the environment variables in the file, in order of appearance."""
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
                hint=f"Set {match[1]}, or write the value into the file if it is not a secret.",
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
    """Resolve folders against the file's folder, so that all processes agree whatever their working
    directory."""

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
        # Without any service, events go to files, unless `files` is null.
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
