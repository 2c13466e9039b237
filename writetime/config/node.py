"""The key `node`: the settings of the shipper on a node."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field, model_validator

from writetime.config.base import Model, Secret


class ShipConfig(Model):
    """Limits of the shipper, and what it does when disk space is short. Sizes in bytes, or as text: 4GiB,
    500MB."""

    cdc_total_space: ByteSize | None = Field(
        default=None,
        gt=0,
        description="The node's setting of this name; absent: read from the node, else Cassandra's default (4 GiB, at "
        "most an eighth of the disk).",
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
        default=1.0,
        gt=0,
        description="How often the shipper looks for newly synced bytes of a growing segment, which it ships as a part: one "
        "object per sync of the node at most (every 10 s by default), plus what exceeds 3 MiB. Every such byte is uploaded "
        "twice. null: segments are shipped only when completed. Cassandra 3.11 has no growing segments in cdc_raw: nothing "
        "is shipped there before a segment is complete.",
    )
    listen: str | None = Field(
        default="127.0.0.1:9464",
        description="host:port of /metrics (Prometheus) and /healthz; null: none. Not used with --once and --drain.",
        pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}$",
    )


class TlsConfig(Model):
    """TLS to the node (client_encryption_options). All files are PEM."""

    ca: Path | None = Field(default=None, description="Certificates of the authorities that are trusted; default: the system's.")
    certificate: Path | None = Field(default=None, description="Client certificate, if the node requires one.")
    key: Path | None = Field(default=None, description="Its private key; default: in the file of the certificate.")
    key_password: Secret | None = Field(default=None, description="The key's password; write ${NAME} and set it in the environment.")
    server_name: str | None = Field(default=None, description="Expected name in the node's certificate; default: node.address.")

    @model_validator(mode="after")
    def _a_key_has_its_certificate(self) -> TlsConfig:
        if self.certificate is None and (self.key is not None or self.key_password is not None):
            raise ValueError("a key without a certificate")
        return self


class NodeConfig(Model):
    """Settings of the node. Only the shipper reads this part."""

    cdc_raw: Path = Field(description="The node's cdc_raw_directory.")
    host_id: str | None = Field(default=None, description="Host id; read from the node if absent.")
    datacenter: str | None = Field(default=None, description="Datacenter; read from the node if absent.")
    address: str | None = Field(default=None, description="CQL address of this node; without it the node is not queried.")
    connect: bool = Field(default=True, description="false: do not query the node; this file holds all that is needed.")
    port: int = Field(default=9042, ge=1, le=65535, description="CQL port.")
    username: str | None = Field(default=None, description="CQL user.")
    password: Secret | None = Field(default=None, description="CQL password; write ${NAME} and set it in the environment.")
    tls: TlsConfig | None = Field(default=None, description="Absent: not encrypted. `{}` trusts the system's authorities.")
    schema_file: Path | None = Field(default=None, description="Schema snapshot to ship if the node cannot be queried.")
    state_dir: Path | None = Field(default=None, description="Folder of the shipper's own files; default: next to cdc_raw.")
    data_file_directories: list[Path] | None = Field(
        default=None,
        description="The node's setting of this name; default: `data` next to cdc_raw. Once a minute the names in it are listed, for "
        "SSTables that were loaded past the commit log; nothing is read. []: they are not looked for.",
    )
    poll_seconds: float = Field(default=5.0, gt=0, description="Seconds between two scans of cdc_raw.")
    ship: ShipConfig = ShipConfig()

    @property
    def state(self) -> Path:
        """The shipper's own folder on the node."""
        return self.state_dir or self.cdc_raw.parent / f"{self.cdc_raw.name}.writetime"

    @property
    def data_folders(self) -> list[Path]:
        """The folders of SSTables, which are only listed."""
        return [self.cdc_raw.parent / "data"] if self.data_file_directories is None else self.data_file_directories

    @property
    def spill(self) -> Path:
        """The folder of spilled segments."""
        return self.ship.spill_dir or self.state / "spill"
