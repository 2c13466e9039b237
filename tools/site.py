"""A complete writetime on one machine, in one folder: the demo's paths and the YAML files that contain them.

    <folder>/pipeline.yaml           read by the jobs and the DAGs
    <folder>/nodes/<address>/        one node: cdc_raw and the shipper's own shipper.yaml
    <folder>/bucket, lake, kafka, airflow

Knows names and folders, starts nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from proof.recording.recording import NodeInfo, Recording
from tools import ROOT
from tools.standalone import Standalone
from writetime.config import debezium

PROPERTIES = ROOT / "docs" / "examples" / "demo.properties"
"""The connector of Debezium whose pipeline it is."""


@dataclass(frozen=True, slots=True)
class Site:
    """The folders of a demo; `elsewhere` is the URL of a bucket outside of them. `lake`: properties by which
    pyiceberg reads tables that are elsewhere, too."""

    folder: Path
    elsewhere: str | None = None
    lake: Mapping[str, str] = field(default_factory=dict)

    @property
    def bucket(self) -> Path:
        return self.folder / "bucket"

    @property
    def bucket_url(self) -> str:
        return self.elsewhere or str(self.bucket)

    @property
    def config(self) -> Path:
        return self.folder / "pipeline.yaml"

    @property
    def catalog(self) -> Path:
        return self.folder / "lake" / "catalog.db"

    @property
    def nodes(self) -> Path:
        return self.folder / "nodes"

    def shipper_config(self, node: NodeInfo) -> Path:
        return self.nodes / node.address / "shipper.yaml"

    def write_configs(
        self,
        recording: Recording,
        *,
        bootstrap: str,
        schedule: str | None,
        mode: str = "batch",
        cluster: Standalone | None = None,
    ) -> None:
        """Write the pipeline's YAML, and one for each node's shipper with the section `node`. `schedule`: of
        batches in mode `batch`, and whether the publisher's fallback runs by itself. `cluster`: where the jobs run, with
        state and tables in its store.
        """
        self.catalog.parent.mkdir(parents=True, exist_ok=True)
        common: dict[str, Any] = {
            "cluster": {"name": recording.cluster_name, "datacenters": sorted({node.datacenter for node in recording.nodes})},
            "bucket": self.bucket_url,
            "state": str(self.folder / "state") if self.elsewhere and cluster is None else self.bucket_url,
        }
        tables = cluster.tables if cluster is not None else {"warehouse": str(self.catalog.parent / "warehouse")}
        jobs = {
            "catalog": {"uri": f"jdbc:sqlite:{self.catalog}", **tables},
            **({"spark": cluster.spark} if cluster is not None else {}),
            "airflow": {
                "mode": mode,
                "ingest_schedule": schedule,
                "publish_fallback": schedule and "*/5 * * * *",
                # Only when triggered: the first scheduled run would start at once, and the session would wait for it.
                "maintain_schedule": None,
            },
        }
        properties = debezium.read_properties(PROPERTIES.read_text(encoding="utf-8"))
        properties["kafka.producer.bootstrap.servers"] = bootstrap
        _write(self.config, debezium.translate(properties, common | jobs).document)
        for node in recording.nodes:
            about = {
                "cdc_raw": "cdc_raw",
                "host_id": node.host_id,
                "datacenter": node.datacenter,
                "address": node.address,
                "connect": False,
                "schema_file": str(recording.path / "schema-snapshot.json"),
                "poll_seconds": 1,
                # Several shippers on one machine: only one could have the default port.
                "ship": {"listen": None},
            }
            _write(self.shipper_config(node), {"pipeline": "demo", **common, "node": about})


def _write(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
