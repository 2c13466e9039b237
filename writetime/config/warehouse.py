"""The keys `catalog` and `warehouse`: the Iceberg tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from writetime.config.base import Model, Secret
from writetime.events.number_rules import NumberRules, parse
from writetime.storage import address

ORPHANS_DAYS = 3.0
"""Age of a file of a table's folder after which maintenance deletes it, if no snapshot has it: crashed jobs and tasks that ran twice
leave such files. Another writer has to commit its files within that time."""


class CatalogConfig(Model):
    """The Iceberg catalog of the warehouse tables."""

    name: str = Field(default="lake", description="Name of the catalog in Spark SQL.", pattern=r"^[a-z][a-z0-9_]*$")
    type: Literal["jdbc", "rest", "hive"] = Field(
        default="jdbc",
        description="jdbc: any JDBC database; SQLite by default. rest: a server with Iceberg's REST protocol. hive: a Hive metastore "
        "(tests check Spark's settings; no server was tested).",
    )
    uri: str = Field(
        description="Address of the catalog: jdbc:sqlite:/var/lib/writetime/catalog.db, https://catalog.example/api, "
        "thrift://metastore:9083."
    )
    warehouse: str = Field(description="Folder or bucket URL of the tables' files; with rest, the server's name of the warehouse.")
    options: dict[str, str] = Field(
        default={}, description="Further properties of the catalog, by Iceberg's names (io-impl, jdbc.user, scope, …)."
    )
    secrets: dict[str, Secret] = Field(
        default={}, description="Further properties with secret values (jdbc.password, credential, token); write ${NAME}."
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> CatalogConfig:
        schemes = {"jdbc": ("jdbc:",), "rest": ("http://", "https://"), "hive": ("thrift://",)}[self.type]
        if not self.uri.startswith(schemes):
            raise ValueError(f"uri of a catalog of type {self.type} begins with {' or '.join(schemes)}")
        if self.type != "rest" and (why := address.reason_no_warehouse(self.warehouse)) is not None:
            raise ValueError(f"warehouse: {why}")
        if taken := sorted({"type", "uri", "warehouse"} & (self.options.keys() | self.secrets.keys())):
            raise ValueError(f"{', '.join(taken)}: has a key of its own")
        return self


class BigQueryConfig(Model):
    """External tables in BigQuery, pointed at the newest snapshot of each table after every batch. Datasets have to
    exist; credentials are Google's application default ones."""

    project: str = Field(description="Project of the datasets.", pattern=r"^[a-z][a-z0-9.:-]*$")
    dataset_prefix: str = Field(
        default="",
        description="Before the names of the datasets, which are those of the Iceberg namespaces: `shop` and `shop__changes`.",
        pattern=r"^[A-Za-z0-9_]*$",
    )
    connection: str | None = Field(
        default=None,
        description="`project.location.connection` by which new external tables read the files; null: with the rights of whoever queries.",
        pattern=r"^[^.\s]+\.[^.\s]+\.[^.\s]+$",
    )


class WarehouseConfig(Model):
    """Layout and maintenance of the warehouse tables."""

    cell_facts: Literal["map", "none"] = Field(
        default="map",
        description="Writetime (µs) and expiry (s) of a row's columns, in `_writetime` and `_expires_at`: as maps by "
        "column name, or not at all. For a collection, the latest "
        "writetime and the earliest expiry. Existing tables keep their format.",
    )
    writes: Literal["merge-on-read", "copy-on-write"] = Field(
        default="merge-on-read",
        description="merge-on-read: a batch writes its changes, and readers merge them. copy-on-write: a batch rewrites "
        "each file with a changed row.",
    )
    decimal: dict[str, str] = Field(
        default={},
        description="Types of `decimal` columns in current rows: `decimal(p, s)` or `text` by pattern of keyspace.table.column, where `*` "
        "stands for any text; the first that matches decides. No match, and primary keys: text.",
    )
    varint: dict[str, str] = Field(
        default={},
        description="The same for `varint` columns: `decimal(p, s)`, `decimal(p)` or `text`. A value that such a type does not hold "
        "exactly rejects its table, which waits for a wider type.",
    )
    keep_snapshots_days: float | None = Field(
        default=7.0,
        ge=0,
        description="Maintenance expires older snapshots and deletes their files; null: never. Queries that read an expired snapshot fail.",
    )
    bigquery: BigQueryConfig | None = Field(default=None, description="External tables in BigQuery; needs a `catalog.warehouse` in gs://.")

    @field_validator("decimal", "varint")
    @classmethod
    def _are_types_by_column(cls, rules: dict[str, str]) -> dict[str, str]:
        for pattern, text in rules.items():
            if pattern.count(".") < 2:
                raise ValueError(f"`{pattern}` is not a keyspace.table.column pattern; did you mean `{pattern}.*`?")
            parse(text)
        return rules

    @property
    def numbers(self) -> NumberRules:
        """The rules of `decimal` and `varint` as the library takes them."""
        by_type = {"decimal": self.decimal, "varint": self.varint}
        return NumberRules({kind: {pattern: parse(text) for pattern, text in rules.items()} for kind, rules in by_type.items()})
