"""Files for machines that run the shipper: they name commands, settings and ports that there are."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from writetime.cli import build
from writetime.config import ShipConfig, load

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "writetime-ship.service"
SIDECAR = ROOT / "deploy" / "kubernetes" / "shipper.yaml"


class Cased(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture
def unit() -> Cased:
    parser = Cased()
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


@pytest.fixture
def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    config, patch = yaml.safe_load_all(SIDECAR.read_text(encoding="utf-8"))
    return config, patch


def accepts(arguments: list[str]) -> None:
    """The command line takes them: what is wrong is only that the file is not there."""
    done = CliRunner().invoke(build(), arguments)
    assert "cannot be read" in str(done.exception), done.output


def test_the_unit(unit: Cased) -> None:
    service = unit["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "writetime"
    accepts(arguments)
    assert service["KillSignal"] == "SIGTERM"
    assert service["User"] == "cassandra"
    assert "/var/lib/cassandra" in service["ReadWritePaths"].split()
    assert service["ProtectSystem"] == "strict"


def test_the_image_asks_where_the_shipper_answers() -> None:
    text = (ROOT / "docker" / "shipper" / "Dockerfile").read_text(encoding="utf-8")
    assert f"http://{ShipConfig().listen}/healthz" in text


def test_the_sidecar(documents: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, patch = documents
    monkeypatch.setenv("CASSANDRA_PASSWORD", "secret")
    file = tmp_path / "pipeline.yaml"
    file.write_text(config["data"]["pipeline.yaml"])
    node = load(file).node
    assert node is not None
    spec = patch["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    accepts(container["args"])
    (port,) = container["ports"]
    assert node.ship.listen == f"0.0.0.0:{port['containerPort']}"
    assert patch["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for path in (node.cdc_raw, node.state, node.spill):
        assert path.is_relative_to(mounts["cassandra-data"]), "the root file system is read-only"
    assert container["args"][-1] == f"{mounts['writetime']}/{next(iter(config['data']))}"
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert container["securityContext"]["runAsNonRoot"]
    assert {variable["name"] for variable in container["env"]} == {"CASSANDRA_PASSWORD"}
