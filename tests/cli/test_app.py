"""The command line: what is printed where, exit codes, and commands that rooms add."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml

from writetime import cli
from writetime.storage.checksum import crc32c
from writetime.storage.layout import NodeName, SegmentName, SegmentRef
from writetime.storage.local import LocalStore

ROOT = Path(__file__).resolve().parents[2]
SHIP = EntryPoint("ship", "shippers.cli:ship", cli.GROUP)


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points that the command line finds, whatever is installed."""
    points = [SHIP]
    monkeypatch.setattr(cli, "entry_points", lambda *, group: points if group == cli.GROUP else [])
    return points


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A node's folder with one completed segment, and a pipeline.yaml beside it."""
    raw = tmp_path / "cdc_raw"
    raw.mkdir()
    (raw / "CommitLog-7-1.log").write_bytes(b"bytes")
    (raw / "CommitLog-7-1_cdc.idx").write_bytes(b"5\nCOMPLETED")
    document = {
        "pipeline": "shop",
        "cluster": {"name": "ring", "datacenters": ["dc1"]},
        "bucket": "bucket",
        "catalog": {"uri": "jdbc:postgresql://h/db?user=u&password=geheim1", "warehouse": "wh"},
        "kafka": {
            "bootstrap.servers": "h:1",
            "topic.prefix": "p",
            "producer": {"sasl.password": "geheim2", "ssl.key.pem": "geheim3", "linger.ms": 5},
        },
        "spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "geheim4", "spark.proxy": "http://u:geheim5@h/"}},
        "node": {"cdc_raw": "cdc_raw", "host_id": "host-1", "datacenter": "dc1", "password": "geheim6", "poll_seconds": 0.05},
    }
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(document))
    return tmp_path


def test_check_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "check", str(folder / "pipeline.yaml")]) == 0
    assert "valid" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_wrong_configuration_is_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    (tmp_path / "p.yaml").write_text("pipeline: shop\n")
    assert cli.main(["config", command, str(tmp_path / "p.yaml")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("writetime: check the configuration: ")
    assert told.err.count("\n") == 1
    assert "`bucket`" in told.err


def test_debug_lets_the_error_through(tmp_path: Path) -> None:
    with pytest.raises(cli.ConfigError):
        cli.main(["--debug", "config", "check", str(tmp_path / "nowhere")])


@pytest.mark.parametrize("as_json", [False, True])
def test_show_masks_secrets_and_fills_in_defaults(folder: Path, capsys: pytest.CaptureFixture[str], as_json: bool) -> None:
    assert cli.main(["config", "show", str(folder / "pipeline.yaml"), *(["--json"] if as_json else [])]) == 0
    text = capsys.readouterr().out
    shown: dict[str, Any] = json.loads(text) if as_json else yaml.safe_load(text)
    assert "geheim" not in text
    assert shown["kafka"]["producer"]["linger.ms"] == 5
    assert shown["kafka"]["topic.prefix"] == "p"
    assert shown["catalog"]["uri"] == "jdbc:postgresql://h/db?user=u&password=**********"
    assert shown["spark"]["conf"]["spark.proxy"] == "http://u:**********@h/"
    assert shown["node"]["password"] == "**********"
    assert shown["node"]["port"] == 9042
    assert shown["bucket"] == str(folder / "bucket")


@pytest.mark.parametrize(
    "uri",
    [
        "jdbc:postgresql://h/db?user=u&sslpassword=hush&ssl=true",
        "jdbc:sqlserver://h;user=u;password={a;hush}",
        "jdbc:mysql://u:a/hush@h/db",
        "jdbc:mysql://u:a@hush@h/db",
        "jdbc:mysql://address=(host=h)(user=u)(password=hush)/db",
        "jdbc:oracle:thin:scott/hush@//h:1521/x",
        "jdbc:snowflake://h/?private_key_pwd=hush",
        "jdbc:x://h/db?sv=2024&sig=hush&se=1",
    ],
)
def test_show_masks_passwords_in_every_form_of_a_uri(tmp_path: Path, capsys: pytest.CaptureFixture[str], uri: str) -> None:
    assert _shown(tmp_path, {"catalog": {"uri": uri, "warehouse": "w"}}) == 0
    text = capsys.readouterr().out
    assert "hush" not in text
    assert "**********" in text
    assert f"uri: {uri[:9]}" in text


SECRET_OPTIONS = {
    "catalog.options": [
        *("header.Authorization", "header.X-Api-Key", "adls.connection-string.account", "adls.sas-token.account"),
        *("header.X-Odd", "s3.sse.key", "s3.secret-access-key", "gcs.decryption-key", "jdbc.pwd", "rest.auth.basic.pass"),
    ],
    "spark.conf": [
        *("spark.hadoop.fs.azure.account.key.lake", "spark.hadoop.fs.s3a.encryption.key", "spark.ssl.keyPassphrase"),
        *("spark.ssl.keyStorePassword", "spark.hadoop.fs.s3a.access.key"),
    ],
    "kafka.producer": [
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.extensions",
        "sasl.kerberos.kinit.cmd",
        "ssl.key.pem",
        "ssl.keystore.password",
    ],
}
"""Options of other systems with secret values, by the key that takes them."""
OPEN_OPTIONS = {
    "catalog.options": ["s3.access-key-id", "s3.path-style-access", "io-impl", "jdbc.user"],
    "spark.conf": ["spark.executor.memory"],
    "kafka.producer": ["ssl.key.location", "ssl.ca.location", "linger.ms", "sasl.username"],
}


def test_show_masks_options_of_other_systems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def given(section: str) -> dict[str, str]:
        return {**dict.fromkeys(SECRET_OPTIONS[section], "hush"), **dict.fromkeys(OPEN_OPTIONS[section], "seen")}

    catalog = {"uri": "jdbc:sqlite:/c.db", "warehouse": "w", "options": given("catalog.options")}
    kafka = {"bootstrap.servers": "h:9092", "topic.prefix": "p", "producer": given("kafka.producer")}
    assert _shown(tmp_path, {"catalog": catalog, "kafka": kafka, "spark": {"conf": given("spark.conf")}}) == 0
    text = capsys.readouterr().out
    assert "hush" not in text
    assert text.count("seen") == sum(map(len, OPEN_OPTIONS.values()))


def _shown(folder: Path, more: dict[str, Any]) -> int:
    document = {"pipeline": "p", "cluster": {"name": "c", "datacenters": ["d"]}, "bucket": "b", **more}
    (folder / "p.yaml").write_text(yaml.safe_dump(document))
    return cli.main(["config", "show", str(folder / "p.yaml")])


@pytest.mark.parametrize("arguments", [["no-such-command"], ["config", "check"], ["ship", "--once"], ["ship", "--no-such-option"]])
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["config", "--help"], ["config", "check", "--help"], ["config", "show", "--help"], ["ship", "--help"]]
)
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    assert "Usage: writetime" in capsys.readouterr().out


def test_the_package_registers_the_commands_and_they_load() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["writetime"] == "writetime.cli:main"
    registered = project["entry-points"][cli.GROUP]
    assert registered["ship"] == SHIP.value
    for name, value in registered.items():
        assert callable(EntryPoint(name, value, cli.GROUP).load())


def test_a_room_whose_libraries_are_missing(commands: list[EntryPoint], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.append(EntryPoint("fly", "no_such_room.cli:fly", cli.GROUP))
    assert cli.main(["config", "check", str(folder / "pipeline.yaml")]) == 0
    capsys.readouterr()
    assert cli.main(["fly", "--high"]) == 2
    assert "no_such_room" in capsys.readouterr().err


def test_help_and_configuration_load_no_drivers() -> None:
    heavy = {"cassandra", "google", "pyspark", "structlog", "tenacity"}
    script = f"import sys; from writetime import cli; import shippers.cli; cli.main(['--help']); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


SEGMENT = SegmentRef(NodeName("ring", "dc1", "host-1"), SegmentName(1, 7))


def test_ship_once(folder: Path) -> None:
    done = run_ship(folder, "--once")
    assert done.returncode == 0, done.stderr
    assert LocalStore(folder / "bucket").read(SEGMENT.incoming) == b"bytes"
    assert list((folder / "cdc_raw").iterdir()) == []
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["event"] for event in events] == [
        "not looking for loaded SSTables, data folder cannot be listed",
        "node status written",
        "uploaded",
        "round finished",
    ]
    assert "geheim" not in done.stderr + done.stdout


def test_the_libraries_log_goes_the_same_way() -> None:
    script = "import logging; from shippers import log; log.configure(); logging.getLogger('cassandra').warning('down: %s', 'x')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    told = json.loads(done.stderr)
    assert (told["event"], told["level"]) == ("down: x", "warning")


def test_ship_once_with_trouble_ends_with_code_1(folder: Path) -> None:
    # Nothing can be written below a file.
    (folder / "bucket").mkdir()
    (folder / "bucket" / "cdc").write_bytes(b"")
    done = run_ship(folder, "--once")
    assert done.returncode == 1
    assert '"kind": "StoreError"' in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((folder / "cdc_raw").iterdir())) == 2


def test_ship_once_with_a_segment_in_conflict(folder: Path) -> None:
    LocalStore(folder / "bucket").put(SEGMENT.incoming, b"other")
    done = run_ship(folder, "--once")
    assert done.returncode == 0, "both are safe"
    (event,) = (json.loads(line) for line in done.stderr.splitlines() if "in conflict" in line and '"level": "error"' in line)
    assert event["object"] == SEGMENT.incoming
    assert "writetime conflicts list" in event["hint"]
    assert LocalStore(folder / "bucket").read(SEGMENT.conflict(crc32c(b"bytes"))) == b"bytes"
    assert list((folder / "cdc_raw").iterdir()) == []


def test_ship_without_its_folder(folder: Path) -> None:
    for path in (folder / "cdc_raw").iterdir():
        path.unlink()
    (folder / "cdc_raw").rmdir()
    done = run_ship(folder, "--once")
    assert done.returncode == 1
    assert "Check node.cdc_raw" in done.stderr
    assert "Traceback" not in done.stderr


def test_ship_until_sigterm(folder: Path) -> None:
    process = subprocess.Popen(command(folder), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    store = LocalStore(folder / "bucket")
    try:
        wait_for(lambda: store.head(SEGMENT.incoming) is not None and not list((folder / "cdc_raw").iterdir()), process)
        # It still looks: a segment that comes later goes too.
        (folder / "cdc_raw" / "CommitLog-7-2.log").write_bytes(b"more")
        (folder / "cdc_raw" / "CommitLog-7-2_cdc.idx").write_bytes(b"4\nCOMPLETED")
        wait_for(lambda: not list((folder / "cdc_raw").iterdir()), process)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, told
    assert store.read(SegmentRef(SEGMENT.node, SegmentName(2, 7)).incoming) == b"more"


def command(folder: Path, *options: str) -> list[str]:
    script = (
        "import sys; from importlib.metadata import EntryPoint; from writetime import cli; "
        f"cli.entry_points = lambda *, group: [EntryPoint('ship', {SHIP.value!r}, group)]; sys.exit(cli.main(sys.argv[1:]))"
    )
    return [sys.executable, "-c", script, "ship", "--config", str(folder / "pipeline.yaml"), *options]


def run_ship(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR",)}
    return subprocess.run(command(folder, *options), cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)


def wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the shipper ended by itself"
        assert time.monotonic() < deadline, "the shipper did not ship"
        time.sleep(0.05)
