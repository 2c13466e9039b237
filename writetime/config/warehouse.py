"""The keys `catalog` and `warehouse`: the Iceberg tables."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from writetime.config.base import Model


class CatalogConfig(Model):
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


class WarehouseConfig(Model):
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
    compact_commits: int | None = Field(
        default=100,
        ge=5,
        description="A session merges the small files of a table after so many of its batches had events of it, so that files stay in "
        "bounds until the next maintenance; null: only maintenance does. Needs `compact`.",
    )
    keep_snapshots_days: float | None = Field(
        default=7.0,
        ge=0,
        description="Maintenance expires older snapshots and deletes their files; null: never. Queries that read an expired snapshot fail.",
    )
    keep_snapshots: int = Field(default=20, ge=1, description="Number of latest snapshots that are kept regardless of age and number.")
    most_snapshots: int | None = Field(
        default=1000,
        ge=1,
        description="Beyond this number, maintenance and sessions also expire snapshots that are neither of the last hour nor the last "
        "of their hour, the oldest first: each commit writes the list of all snapshots. null: only `keep_snapshots_days` applies. If "
        "that is null, nothing is expired.",
    )
