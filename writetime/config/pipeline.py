"""The configuration of a pipeline: one YAML file, read by the shipper, the jobs and the DAGs.

Strategy: pydantic models define the keys and reject unknown ones; `load` reports all errors as one
ConfigError with file and keys. `${NAME}` in a string is replaced from the environment, so that secrets stay
out of the file; an unset variable is an error. Relative paths refer to the file's folder. Must not know a
store or a service.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator

from writetime.config.airflow import AirflowConfig, SparkConfig
from writetime.config.archive import ArchiveConfig
from writetime.config.base import Model, StoreUrl, is_secret, without_secrets
from writetime.config.cluster import ClusterConfig, SnapshotConfig
from writetime.config.gone import unknown
from writetime.config.kafka import EventsConfig, FilesConfig, KafkaConfig, PartitionBy, QuarantineConfig
from writetime.config.node import NodeConfig
from writetime.config.tables import ColumnsConfig, TablesConfig
from writetime.config.warehouse import CatalogConfig, WarehouseConfig
from writetime.config.yaml_file import Document, Refused, key_text, read
from writetime.errors import ConfigError
from writetime.events.masking import Rules
from writetime.storage import layout
from writetime.storage.address import is_url, parse

_SQLITE = re.compile(r"(jdbc:sqlite:(?:file:)?)(?!:|/|file:)([^?]+)(\?.*)?")
"""A relative path; `:memory:` and `:resource:` are none."""
_KEY_WITHIN = re.compile(r"`([^`]+)`: ")
"""How a message begins that a model says of one of its keys."""
NAME = r"[a-z][a-z0-9_]*"
"""What a pipeline may be called."""
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_REFERENCE = re.compile(r"\$\{[^}]*\}")
_WHOLE_REFERENCE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*|%[A-Za-z_][A-Za-z0-9_]*%|\{\{.*\}\}", re.DOTALL)
"""How shells, Windows and templates write a variable."""
_QUOTED = re.compile(r"'(?!<|\\t)[^']{2,}'")
"""Words of the file in PyYAML's messages, but not its names of tokens."""
_REPLACE_THEMSELVES = ("spark", "airflow")
"""Sections whose readers have `${…}` and templates of their own."""


class PipelineConfig(Model):
    """A pipeline: one cluster, one bucket, one warehouse, one topic prefix."""

    pipeline: Annotated[str, Field(description="Name of the pipeline, used in DAG ids, pools and metrics.", pattern=f"^{NAME}$")]
    cluster: ClusterConfig
    bucket: StoreUrl = Field(
        description="gs://bucket[/prefix], s3://bucket[/prefix], s3+https://host[:port]/bucket[/prefix] (a service other than Amazon's) "
        "or a folder: segments, archive, state, ledger, quarantine."
    )
    state: StoreUrl | None = Field(default=None, description="Folder or URL of the state shards; default: the bucket.")
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
    buckets: int = Field(
        default=1,
        ge=1,
        le=4096,
        description="State shards of a table: a new one has so many, and one that has fewer gets them "
        "by the next maintenance. Not lowered for tables that are there.",
    )
    segments_per_batch: int = Field(
        default=10_000,
        ge=1,
        le=100_000,
        description="Maximum segments per batch, oldest first, however fast batches are (`batch_seconds`). A rebuild takes at most 1000.",
    )
    batch_seconds: float | None = Field(
        default=120.0,
        ge=5,
        le=7200,
        description="How long a batch over a backlog should take: its bytes follow what the last batches took, at most twice as many as "
        "any of them, the first ones 8 GiB. A shorter time lets a backlog be published earlier, a longer one wastes less time per batch. "
        "null: only `segments_per_batch` limits a batch.",
    )

    @model_validator(mode="after")
    def _has_tables_that_bigquery_reads(self) -> PipelineConfig:
        # With rest it is the server's name of the warehouse.
        is_a_place = self.catalog is not None and self.catalog.type != "rest"
        if self.warehouse.bigquery and self.catalog and is_a_place and not self.catalog.warehouse.startswith("gs://"):
            raise ValueError("warehouse.bigquery: BigQuery reads tables in gs:// only, and catalog.warehouse is elsewhere")
        return self

    @model_validator(mode="after")
    def _can_read_what_no_log_holds(self) -> PipelineConfig:
        # Shippers' files need not have it, and replays into a shadow namespace read nothing from the cluster.
        if self.tables.not_in_log == "read" and self.cluster.cql is None and self.node is None:
            raise ValueError("tables.not_in_log: read needs `cluster.cql`, which says where the cluster is")
        return self

    @property
    def partition_by(self) -> PartitionBy:
        """`kafka.partition_by`; without Kafka, its default."""
        return self.kafka.partition_by if self.kafka is not None else "primary_key"

    @property
    def rules(self) -> Rules:
        """All rules that leave something out, of which each is to fit something."""
        return replace(self.columns.rules, left_out=self.tables.left_out)

    def shadow(self, namespace: str) -> PipelineConfig:
        """The configuration of replays into a shadow namespace: separate batches and state, and no output but
        the warehouse."""
        cluster = self.cluster.model_copy(update={"name": layout.shadow_chain(self.cluster.name, namespace), "cql": None})
        return self.model_copy(update={"cluster": cluster, "kafka": None, "files": None})

    def state_url(self, name: str) -> str:
        """The URL of an object of the state."""
        return parse(self.state or self.bucket).child(name).url


def load(path: str | Path) -> PipelineConfig:
    """Read and validate a pipeline's YAML. ConfigError states the file, the key, the line and the reason."""
    path = Path(path)
    document = _read(path)
    if not isinstance(document.values, dict):
        raise ConfigError("not a mapping of keys", operation="read the configuration", obj=str(path))
    values = _substitute(document.values, str(path), ())
    try:
        config = PipelineConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, document), operation="check the configuration", obj=str(path)) from error
    return _absolute(config, path.resolve().parent)


def _read(path: Path) -> Document:
    try:
        return read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", operation="read the configuration", obj=str(path)) from error
    except UnicodeDecodeError as error:
        hint = "Save the file as UTF-8."
        raise ConfigError(f"not UTF-8: {error}", operation="read the configuration", obj=str(path), hint=hint) from error
    except Refused as error:
        raise ConfigError(str(error), operation="read the configuration", obj=str(path)) from error
    except RecursionError as error:
        raise ConfigError("not valid YAML: nested too deeply", operation="read the configuration", obj=str(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {_yaml_problem(error)}", operation="read the configuration", obj=str(path)) from None
    except ValueError as error:
        raise ConfigError(f"not valid YAML: {error}", operation="read the configuration", obj=str(path)) from error


def _yaml_problem(error: yaml.YAMLError) -> str:
    """What is wrong, and where; without the line itself and the words of it, which may be a password."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return "it has a character that YAML does not allow, such as a control character"
    where = (f"{what} (line {mark.line + 1}, column {mark.column + 1})" if mark else what for what, mark in _marked(error) if what)
    return _QUOTED.sub("'…'", ", ".join(where))


def _marked(error: yaml.MarkedYAMLError) -> tuple[tuple[str | None, yaml.Mark | None], ...]:
    return (error.context, error.context_mark), (error.problem, error.problem_mark)


def example_environment(path: str | Path) -> list[str]:
    """Names of the environment variables in the file, in order of appearance."""
    return list(dict.fromkeys(VARIABLE.findall(Path(path).read_text(encoding="utf-8"))))


def _substitute(value: Any, path: str, key: tuple[str | int, ...]) -> Any:
    if isinstance(value, dict):
        return {k: _substitute(v, path, (*key, k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_substitute(v, path, (*key, i)) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value
    if _is_left_as_it_is(value, key):
        raise ConfigError(
            f"`{key_text(key)}` refers to a value in a way that is not replaced here, so it would be taken as it is written",
            operation="check the configuration",
            obj=path,
            hint="Write ${NAME}, and set NAME in the environment: also if the value itself has these characters.",
        )

    if "${" not in value:
        return value

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigError(
                f"`{key_text(key)}` needs the environment variable {match[1]}, which is not set",
                operation="check the configuration",
                obj=path,
                hint=f"Set {match[1]}, or write the value into the file if it is not a secret.",
            )
        return found

    return VARIABLE.sub(replace, value)


def _is_left_as_it_is(text: str, key: tuple[str | int, ...]) -> bool:
    """Whether a text has a reference of another tool's form: `${env:NAME}`, `${NAME:-default}`; and as a secret `$NAME`, which
    would be a password or a salt that everybody knows."""
    if key and key[0] in _REPLACE_THEMSELVES:
        return False
    if any(VARIABLE.fullmatch(found) is None for found in _REFERENCE.findall(text)):
        return True
    secret = any(isinstance(part, str) and is_secret(part) for part in key)
    return secret and _WHOLE_REFERENCE.fullmatch(text.strip()) is not None


def explain(error: ValidationError, document: Document | None = None) -> str:
    """The problems of a pipeline, each with its key, and its line in the file."""
    found: dict[str, None] = {}
    for problem in error.errors(include_url=False, include_input=False):
        path = problem["loc"]
        message = unknown(path) if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        if inner := _KEY_WITHIN.match(message):
            path, message = (*path, inner[1]), message[inner.end() :]
        key = ".".join(str(piece) for piece in path) or "the file"
        message = without_secrets(message)
        line = None if document is None else document.line(path)
        found[f"`{key}`: {message}{'' if line is None else f' (line {line})'}"] = None
    return "; ".join(found)


def _absolute_sqlite(uri: str, base: Path) -> str:
    """The URI of a catalog, with the file of an SQLite database as an absolute path."""
    found = _SQLITE.fullmatch(uri)
    return uri if found is None else f"{found[1]}{(base / found[2]).resolve()}{found[3] or ''}"


def _absolute_option(name: str, value: Any, base: Path) -> Any:
    """An option of librdkafka, with a file as an absolute path."""
    is_file = name.endswith((".location", ".keytab")) and isinstance(value, str) and value not in ("", "probe")
    return str((base / value).resolve()) if is_file else value


def _absolute(config: PipelineConfig, base: Path) -> PipelineConfig:
    """Resolve folders against the file's folder, so that all processes agree whatever their working
    directory."""

    def folder(text: str) -> str:
        if is_url(text):
            return text.rstrip("/")
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
        places = {"warehouse": folder(config.catalog.warehouse), "uri": _absolute_sqlite(config.catalog.uri, base)}
        update["catalog"] = config.catalog.model_copy(update=places)
    if config.files is not None:
        update["files"] = config.files.model_copy(update={"url": folder(config.files.url)})
    elif config.kafka is None and "files" not in config.model_fields_set:
        # Without any service, events go to files, unless `files` is null.
        update["files"] = FilesConfig(url=f"{update['bucket'].rstrip('/')}/{layout.events_prefix(config.cluster.name).rstrip('/')}")
    if config.kafka is not None:
        files = {name: getattr(config.kafka, f"schema_registry_{name}") for name in ("ca", "certificate", "key")}
        given: dict[str, Any] = {f"schema_registry_{name}": (base / path).resolve() for name, path in files.items() if path is not None}
        given["producer"] = {name: _absolute_option(name, value, base) for name, value in config.kafka.producer.items()}
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
