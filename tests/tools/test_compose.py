"""docker-compose.yml without a container engine: valid for compose, ports on loopback only, existing
names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import jars
from writetime.config.pipeline import load

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILES = sorted((ROOT / "docker").glob("*/Dockerfile"))
ONE_SHOT = {name for name, service in SERVICES.items() if service["restart"] == "no"}


def compose_command() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0:
            return command
    return None


def test_compose_itself_finds_it_clean(tmp_path: Path) -> None:
    command = compose_command()
    if command is None:
        pytest.skip("docker compose is not installed; the other tests look at the file as YAML")
    files = ["--file", str(ROOT / "docker-compose.yml"), "--env-file", str(tmp_path / "env"), "--profile", "gcs"]
    (tmp_path / "env").touch()
    done = subprocess.run([*command, *files, "config", "--quiet"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_everything_that_the_pipeline_needs_is_there() -> None:
    assert {"cassandra", "shipper", "kafka", "registry", "gcs"} <= SERVICES.keys()
    assert {"airflow-init", "airflow-api", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"} <= SERVICES.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:"), port
    assert SERVICES[name].get("network_mode") is None
    assert not SERVICES[name].get("privileged", False)


@pytest.mark.parametrize("name", SERVICES)
def test_no_image_floats(name: str) -> None:
    image = SERVICES[name]["image"]
    own = image.startswith("writetime-")
    assert own or re.search(r":\d", image), f"{image} has no version"


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_runs_as_root(name: str) -> None:
    # These images switch to a user of their own.
    assert "user" in SERVICES[name] or SERVICES[name]["image"].startswith(("apache/kafka:", "apicurio/"))


@pytest.mark.parametrize("name", SERVICES)
def test_who_waits_waits_for_something_that_can_come_true(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other], other
        else:
            assert how["condition"] == "service_completed_successfully"
            assert other in ONE_SHOT, other


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - ONE_SHOT - {"shipper"}))
def test_every_service_has_a_healthcheck(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_are_declared_and_mounted_files_exist(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source = mount.split(":")[0]
        if source.startswith("./"):
            assert (ROOT / source).is_file(), source
            assert mount.endswith(":ro"), mount
        else:
            assert source in COMPOSE["volumes"], source


def test_a_shipper_sees_the_very_folder_that_cassandra_writes() -> None:
    """cdc_raw holds hard links into the commit log's file system: both must be in one volume."""
    config = load_pipeline()
    assert config.node is not None
    assert config.node.cdc_raw.is_relative_to("/var/lib/cassandra")
    for name in ("cassandra", "shipper"):
        assert "cassandra:/var/lib/cassandra" in SERVICES[name]["volumes"]
        assert SERVICES[name]["user"] == "999:999"


def test_no_secret_is_written_down() -> None:
    """Airflow's keys are made in its volume; a password comes from .env or is made there too."""
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if re.search(r"KEY|SECRET|PASSWORD$", name):
                assert value == f"${{{name}:-}}", name
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()
    assert not re.search(r"^[A-Z_]+=\S", (ROOT / ".env.example").read_text(), re.MULTILINE)


def test_an_admin_gets_the_password_that_was_set_or_a_random_one(tmp_path: Path) -> None:
    script = (ROOT / "docker" / "airflow" / "init.sh").read_text().replace("/var/lib", str(tmp_path))
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (tmp_path / "airflow").mkdir()
    for program, code in (("airflow", "#!/bin/sh\n"), ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (binaries / program).write_text(code)
        (binaries / program).chmod(0o755)

    def password(**env: str) -> str:
        subprocess.run(["bash", "-c", script], env={"PATH": f"{binaries}:/usr/bin:/bin", **env}, check=True)
        return str(json.loads((tmp_path / "airflow" / "passwords.json").read_text())["admin"])

    first = password()
    assert len(first) >= 16
    assert password() == first, "it stays"
    assert password(AIRFLOW_ADMIN_PASSWORD='quo"ted') == 'quo"ted'


def test_every_variable_is_explained() -> None:
    example = (ROOT / ".env.example").read_text()
    for name in re.findall(r"(?<!\$)\$\{(\w+)", TEXT):
        assert re.search(rf"^#?{name}=", example, re.MULTILINE), name


def load_pipeline() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WRITETIME_BUCKET", "/var/lib/writetime/bucket")
        return load(ROOT / "docker" / "pipeline.yaml")


def test_the_pipeline_speaks_of_the_same_services() -> None:
    config = load_pipeline()
    assert config.kafka is not None
    assert config.kafka.bootstrap_servers.split(":")[0] in SERVICES
    assert config.node.address in SERVICES
    assert config.cluster.name == SERVICES["cassandra"]["environment"]["CASSANDRA_CLUSTER_NAME"]
    assert config.cluster.datacenters == [SERVICES["cassandra"]["environment"]["CASSANDRA_DC"]]


def test_versions_are_those_of_the_locked_jars() -> None:
    (kafka,) = [artefact for artefact in jars.read_lock()["kafka"] if artefact.artifact == "kafka_2.13"]
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{kafka.version}"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_what_a_dockerfile_copies_is_there_and_let_through(path: Path) -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [source for line in re.findall(r"^COPY (?!--from)(.*)$", path.read_text(), re.MULTILINE) for source in sources(line)]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(source == name or source.startswith(f"{name}/") for name in allowed), f"{source} is kept out by .dockerignore"


def sources(line: str) -> list[str]:
    words = [word for word in line.split() if not word.startswith("--")]
    return words[:-1]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_ends_as_an_ordinary_user(path: Path) -> None:
    users = re.findall(r"^USER (\S+)$", path.read_text(), re.MULTILINE)
    assert users
    assert users[-1] not in ("root", "0")


@pytest.mark.parametrize("path", sorted((ROOT / "docker").glob("*/*.sh")), ids=lambda path: path.name)
def test_scripts_can_be_run(path: Path) -> None:
    assert path.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize(
    "before",
    [
        "cdc_enabled: false\n# cdc_raw_directory: /var/lib/cassandra/cdc_raw\ncommitlog_segment_size: 32MiB\n",
        "# cdc_enabled: false\n#cdc_raw_directory: /elsewhere\n",
        "cluster_name: 'Test Cluster'\n",
    ],
)
def test_cassandra_gets_cdc_whatever_its_file_said(before: str, tmp_path: Path) -> None:
    settings = tmp_path / "cassandra.yaml"
    settings.write_text(before)
    entry = tmp_path / "docker-entrypoint.sh"
    entry.write_text('#!/bin/bash\necho "$@"\n')
    entry.chmod(0o755)
    script = (ROOT / "docker" / "cassandra" / "with-cdc.sh").read_text().replace("/etc/cassandra/cassandra.yaml", str(settings))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    told = subprocess.run(["bash", "-c", script], env=env, check=True, capture_output=True, text=True).stdout
    assert told == "cassandra -f\n"
    after = yaml.safe_load(settings.read_text())
    assert after["cdc_enabled"] is True
    assert after["cdc_raw_directory"] == "/var/lib/cassandra/cdc_raw"
    assert after["commitlog_segment_size"] == "1MiB"
