"""Files for machines that run the shipper: the commands, settings and ports in them exist."""

from __future__ import annotations

import configparser
import contextlib
import re
import shlex
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from shippers import systemd
from writetime.cli import build
from writetime.config.node import ShipConfig
from writetime.config.pipeline import load

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "writetime-ship.service"
IMAGE = ROOT / "docker" / "shipper" / "Dockerfile"
IMAGES = sorted((ROOT / "docker").glob("*/Dockerfile"))
INSTALLERS = [
    *IMAGES,
    *sorted((ROOT / "docker").glob("*/*.sh")),
    ROOT / "Makefile",
    *sorted((ROOT / "tools").glob("*.sh")),
    ROOT / ".ci" / "run",
]
SIDECAR = ROOT / "deploy" / "kubernetes" / "shipper.yaml"


class Cased(configparser.RawConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.fixture
def unit() -> Cased:
    # Of options that stand several times, the last one counts here.
    parser = Cased(strict=False)
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


@pytest.fixture
def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    config, patch = yaml.safe_load_all(SIDECAR.read_text(encoding="utf-8"))
    return config, patch


def accepts(arguments: list[str]) -> None:
    """The command line is valid: the only error is the missing file."""
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


def test_the_unit_exposes_little(unit: Cased) -> None:
    """The exposure level of systemd-analyze, if installed: from 0 (none) to 10 (unconfined)."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run([analyze, "security", "--offline=true", "--no-pager", str(UNIT)], capture_output=True, text=True, check=False)
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    if found is None:
        pytest.skip(f"systemd-analyze cannot judge a unit here: {done.stderr.strip()[:200]}")
    assert float(found[1]) < 2


def test_the_watchdog_allows_for_a_machine_that_is_busy(unit: Cased) -> None:
    assert float(unit["Service"]["WatchdogSec"]) >= 10 * systemd._EVERY_SECONDS
    assert unit["Service"]["Type"] == "notify"


@contextlib.contextmanager
def manager(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(folder / "notify"))
        end.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        yield end


def test_systemd_is_notified_while_the_shipper_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = [True]
    monkeypatch.setenv("WATCHDOG_USEC", "60000")
    with manager(tmp_path, monkeypatch) as end, systemd.watched(lambda: alive[0]):
        assert [end.recv(100) for _ in range(4)] == [b"READY=1"] + [b"WATCHDOG=1"] * 3
        alive[0] = False
        end.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            # One may have been on its way.
            end.recv(100)
        with pytest.raises(TimeoutError):
            end.recv(100)
        alive[0] = True
        end.settimeout(10)
        assert end.recv(100) == b"WATCHDOG=1"


def test_a_manager_that_does_not_read_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue is full: the service is reported as ready once there is room."""
    monkeypatch.setenv("WATCHDOG_USEC", "60000")
    with manager(tmp_path, monkeypatch) as end:
        full = 0
        while systemd.notify("STATUS=busy"):
            full += 1
        begun = time.monotonic()
        with systemd.watched(lambda: True):
            assert time.monotonic() - begun < 5
            heard = [end.recv(100) for _ in range(full + 2)]
            assert set(heard[:full]) == {b"STATUS=busy"}
            assert heard[full] == b"READY=1"


def test_nobody_to_notify_is_no_reason_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nowhere"))
    with systemd.watched(lambda: True):
        assert not systemd.notify("READY=1")


def test_the_image_asks_where_the_shipper_answers() -> None:
    text = IMAGE.read_text(encoding="utf-8")
    assert f"http://{ShipConfig().listen}/healthz" in text


def test_the_image_installs_by_hashes_only() -> None:
    text = IMAGE.read_text(encoding="utf-8")
    installs = re.findall(r"pip install (.*)", text)
    assert installs
    assert all("--require-hashes" in each or "--no-deps --no-build-isolation" in each for each in installs)
    locked = (ROOT / "requirements-ship.txt").read_text(encoding="utf-8")
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert f"\n{backend} \\\n    --hash=sha256:" in locked
    assert (IMAGE.parent / "build.in").read_text(encoding="utf-8").strip() == backend
    all_of_it = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    for pin in re.findall(r"^([a-z0-9._-]+==[^ ]+)", locked, re.MULTILINE):
        assert pin == backend or f"\n{pin} " in all_of_it, "the versions that were tested"


def commands(file: Path) -> list[str]:
    """Its lines without comments, those that go on joined."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.sub(r"\\\n\s*", " ", text).splitlines()


@pytest.mark.parametrize("file", INSTALLERS, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_nothing_is_installed_without_its_hash(file: Path) -> None:
    """This package itself has none, and what builds it is there by its hash already."""
    for line in commands(file):
        for install in re.findall(r"\bpip (?:install|sync) .*", line):
            assert "--require-hashes" in install or ("--no-deps" in install and "--no-build-isolation" in install), line
        assert not re.search(r"\b(uvx|pipx|easy_install|uv (?:tool|run|sync|add))\b", line), line


def test_there_are_installs_to_look_at() -> None:
    assert sum(len(re.findall(r"\bpip (?:install|sync) ", line)) for file in INSTALLERS for line in commands(file)) >= 5


def test_what_makes_the_environment_has_hashes() -> None:
    locked = (ROOT / "tools" / "bootstrap.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^([a-z0-9-]+==[0-9.]+) \\\n    --hash=sha256:[0-9a-f]{64}", locked, re.MULTILINE)
    wanted = [line for line in (ROOT / "tools" / "bootstrap.in").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert sorted(pins) == sorted(wanted), "run make lock"
    (backend,) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert backend in pins


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: file.parent.name)
def test_a_base_can_be_pinned(file: Path) -> None:
    lines = commands(file)
    (base,) = [line for line in lines if line.startswith("ARG BASE=")]
    # A tag, since a digest is of one day: who builds a release gives it.
    assert re.fullmatch(r"ARG BASE=[a-z]+:[0-9.]+[a-z0-9.-]*", base)
    assert lines.index(base) < next(at for at, line in enumerate(lines) if line.startswith("FROM "))
    stages = {"${BASE}"}
    for line in (line for line in lines if line.startswith("FROM ")):
        _, source, *name = line.split()
        assert source in stages, line
        stages |= set(name[1:])


@pytest.mark.parametrize("file", IMAGES, ids=lambda file: file.parent.name)
def test_the_user_of_an_image_owns_nothing_of_the_program(file: Path) -> None:
    lines = commands(file)
    last = max(at for at, line in enumerate(lines) if line.startswith("FROM "))
    assert not any(line.startswith("USER") for line in lines[:last]), "what is built is root's"
    final = lines[last:]
    user = final.index("USER 999:999")
    assert not any(line.startswith(("COPY", "ADD", "RUN", "USER")) for line in final[user + 1 :])
    owned = [line.split()[-1] for line in lines if "--chown" in line]
    owned += [path for line in lines for path in re.findall(r"install -d -o \S+ -g \S+ (.*)$", line)[:1] for path in path.split()]
    assert set(owned) <= {"/var/lib/airflow", "/var/lib/writetime", "/var/cache/writetime"}, "data, and a cache of machine code"


@pytest.mark.parametrize("file", sorted(SIDECAR.parent.glob("*.yaml")), ids=lambda file: file.name)
def test_manifests_fit_the_schema_of_kubernetes(file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        if document["kind"] == "StatefulSet":
            # A patch: what the pods of the set have already.
            document["spec"] |= {"selector": {"matchLabels": {"app": "cassandra"}}, "serviceName": "cassandra"}
            document["spec"]["template"]["spec"]["containers"] = [{"name": "cassandra"}]
        kubernetes_validate.validate(document, "1.29", strict=True)
        (pod,) = [each for each in (document.get("spec", {}).get("template", {}).get("spec"),) if each] or [{}]
        for container in [*pod.get("initContainers", []), *(c for c in pod.get("containers", []) if c["name"] != "cassandra")]:
            security = container["securityContext"]
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (
                True,
                True,
                False,
            )


def test_the_sidecar(documents: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, patch = documents
    monkeypatch.setenv("CASSANDRA_PASSWORD", "secret")
    file = tmp_path / "pipeline.yaml"
    file.write_text(config["data"]["pipeline.yaml"])
    node = load(file).node
    assert node is not None
    spec = patch["spec"]["template"]["spec"]
    (container,) = spec["initContainers"]
    assert container["restartPolicy"] == "Always", "a native sidecar"
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
