"""The keys `cluster` and `snapshot`: the captured cluster, and reading its tables over CQL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from writetime.config.base import LOWER, UPPER, Model
from writetime.storage.layout import reason_no_cluster


class ClusterConfig(Model):
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

    @field_validator("name")
    @classmethod
    def _has_objects_of_its_own(cls, name: str) -> str:
        if (why := reason_no_cluster(name)) is not None:
            raise ValueError(f"{name!a} is no name for a pipeline's cluster: {why}")
        return name

    @property
    def read_in(self) -> str:
        """The datacenter whose nodes answer reads."""
        return (self.cql.datacenter if self.cql else None) or self.datacenters[0]


class CqlConfig(Model):
    """CQL connection for reading tables. Every worker reads the password from WRITETIME_CQL_PASSWORD, that of
    a private key from WRITETIME_CQL_KEY_PASSWORD: neither is part of the configuration or sent to workers."""

    contact_points: list[str] = Field(description="Addresses of some nodes.", min_length=1)
    port: int = Field(default=9042, ge=1, le=65535, description="CQL port.")
    datacenter: str | None = Field(
        default=None,
        min_length=1,
        description="Datacenter whose nodes answer the reads, and that LOCAL_ONE and LOCAL_QUORUM speak of; absent: the "
        "first of cluster.datacenters.",
    )
    username: str | None = Field(default=None, description="CQL user; needs SELECT on captured tables only.")
    tls: CqlTlsConfig | None = Field(default=None, description="Absent: not encrypted. `{}` trusts the system's authorities.")


class CqlTlsConfig(Model):
    """TLS to the cluster. All files are PEM, on every worker."""

    ca: Path | None = Field(default=None, description="Certificates of the authorities that are trusted; default: the system's.")
    certificate: Path | None = Field(default=None, description="Client certificate, if the cluster requires one.")
    key: Path | None = Field(default=None, description="Its private key; default: in the file of the certificate.")
    check_hostname: bool = Field(default=True, description="Whether a node's certificate must match the address of the connection.")


Consistency = Literal["ALL", "EACH_QUORUM", "QUORUM", "LOCAL_QUORUM", "THREE", "TWO", "ONE", "LOCAL_ONE", "SERIAL", "LOCAL_SERIAL"]
"""Cassandra's consistency levels for reads."""


class SnapshotConfig(Model):
    """Reading tables from the cluster, for rows that are not in a log."""

    mode: Annotated[Literal["initial", "always", "never"], LOWER] = Field(
        default="initial",
        description="initial: a captured table is read once, automatically. always: also each time its cdc is switched on "
        "again. never: on request only.",
    )
    consistency: Annotated[Consistency, UPPER] = Field(
        default="ALL",
        description="Below ALL a read may miss an existing row; rows that a read does not return stay unchanged.",
    )
    events: Literal["r", "none"] = Field(default="r", description="r: rows that were read become events with op r. none: no events.")
    ranges: int = Field(default=64, ge=1, description="Minimum number of token ranges per table; a failed range is read again as a whole.")
    page_rows: int = Field(default=1000, ge=1, description="Rows per page.")
    rows_per_second: int | None = Field(
        default=10_000,
        ge=1,
        description="Maximum rows per second that a reading or a comparison of tables reads from the cluster, over all workers; null: no "
        "limit.",
    )
    verify_share: float = Field(
        default=0.01,
        gt=0,
        le=1,
        description="Share of a table's tokens that a scheduled run of cdc_verify compares with the cluster, continuing where the last one "
        "stopped: with the default, once a day, all of a table in 100 days. A table that was never compared is compared completely.",
    )
    readers: int = Field(default=2, ge=1, description="Maximum number of ranges read in parallel.")
    margin_seconds: float = Field(
        default=10.0,
        ge=0,
        description="Writes this close to the start of a range's read are taken from the log: the clocks of clients and nodes differ.",
    )
