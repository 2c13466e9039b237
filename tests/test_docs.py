"""Every command in the documentation is one that is run: here, by another test, or by CI. A command nobody
runs fails this test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from proof.recording.recording import Recording
from writetime.config.pipeline import example_environment, load

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]

# Where a command that is too large for this test is run instead: (file, text that must stand in it).
ELSEWHERE = {
    "make demo": (".ci/run", "make demo"),
    "python -m tools.executor_environment": ("tools/standalone.py", "executor_environment.current(ARCHIVE)"),
    "make test": (".ci/run", "make test"),
    "make setup": (".ci/run", "make setup"),
    "make lint": (".ci/run", "make -j2 -O lint types"),
    "make types": (".ci/run", "make -j2 -O lint types"),
    "make test-gcs": (".ci/run", "make -j2 -O test-gcs test-s3"),
    "make test-s3": (".ci/run", "make -j2 -O test-gcs test-s3"),
    "make bench-plan ARGS='--objects 20000'": ("tests/benchmarks/test_plan.py", 'plan.main(["--objects"'),
    "make bench-nodes ARGS='--nodes 100 300 1000 --tails off --json'": ("tests/benchmarks/test_nodes.py", '"--tails", "off"'),
    "make record": ("tests/proof/test_recording.py", "proof.recording.record"),
    "airflow backfill create --dag-id cdc_replay --from-date 2026-01-31T10:00Z --to-date 2026-01-31T12:00Z --reprocess-behavior completed": (  # noqa: E501
        "tests/airflow/test_running.py",
        '"--reprocess-behavior", "completed"',
    ),
    "writetime metrics --config docs/pipeline.example.yaml --output /var/lib/node_exporter/writetime.prom": (
        "tests/monitoring/test_metrics.py",
        '"--output", str(target)',
    ),
    "writetime status --config docs/pipeline.example.yaml": (
        "tests/monitoring/test_status.py",
        '["status", "--config", config(folder, tmp_path)])',
    ),
    "writetime status --config docs/pipeline.example.yaml --json --last 240": (
        "tests/monitoring/test_status.py",
        '"--json", "--last", "2"',
    ),
    "writetime cost --config docs/pipeline.example.yaml": ("tests/monitoring/test_cost_report.py", '["cost", "--config", file]'),
    "writetime cost --config docs/pipeline.example.yaml --days 31 --json": (
        "tests/monitoring/test_cost_report.py",
        '["cost", "--config", file, "--days", "31", "--json"]',
    ),
    "writetime ship --config docs/pipeline.example.yaml --dry-run --json": ("tests/shippers/test_metrics.py", 'run("--dry-run", "--json")'),
    "writetime ship --config docs/pipeline.example.yaml --once": ("tools/demo.py", '"ship", "--config", str(config), "--once"'),
    "writetime bootstrap --config docs/pipeline.example.yaml --table shop.orders": ("proof/bootstrap/live.py", "bootstrap.run("),
    "writetime bootstrap --config docs/pipeline.example.yaml --table shop.orders --token-range 0:4611686018427387904": (
        "tests/pipeline/bootstrap/test_run.py",
        '"0:4611686018427387904"',
    ),
    "writetime rebuild --config docs/pipeline.example.yaml": ("tests/spark_jobs/test_rebuild.py", 'command(ring, "--partial", "--yes")'),
    "writetime bootstrap --config docs/pipeline.example.yaml --status": ("tests/pipeline/bootstrap/test_run.py", '"--status"'),
    "writetime quarantine list --config docs/pipeline.example.yaml": ("tests/pipeline/quarantine/test_retry.py", 'ran("list")'),
    "writetime quarantine show --config docs/pipeline.example.yaml --values "
    "dc1/00000000-0000-4000-8000-000000000000/CommitLog-7-1/0000000092-52": (
        "tests/pipeline/quarantine/test_retry.py",
        'ran("show", short, "--values")',
    ),
    "writetime quarantine retry --config docs/pipeline.example.yaml --all": (
        "tests/pipeline/quarantine/test_retry.py",
        'ran("retry", "--all")',
    ),
    "writetime quarantine release cdc/my-ring/dc1/00000001-0000-4000-8000-000000000000/CommitLog-7-1777890000010.log "
    '--config docs/pipeline.example.yaml --reason "damaged for good"': (
        "tests/pipeline/test_completeness.py",
        '"--reason", "damaged for good"',
    ),
    "writetime erase shop.customers --config docs/pipeline.example.yaml --key": (
        "tests/spark_jobs/test_erase.py",
        'command = ["erase", TABLE, "--config"',
    ),
    "writetime registry --config docs/pipeline.example.yaml": ("tests/spark_jobs/test_used_schemas.py", '["registry", "--config"'),
    "writetime registry --restore --config docs/pipeline.example.yaml": (
        "tests/spark_jobs/test_used_schemas.py",
        '["registry", "--restore", "--config"',
    ),
    "writetime history shop.orders --config docs/pipeline.example.yaml": (
        "tests/spark_jobs/test_table_history.py",
        '["history", "shop.orders", "--config"',
    ),
    "writetime history shop.orders --batch 5 --config docs/pipeline.example.yaml": (
        "tests/spark_jobs/test_table_history.py",
        '["history", "shop.orders", "--batch", "5", "--config"',
    ),
    "writetime again shop.orders --config docs/pipeline.example.yaml": (
        "tests/cli/test_batches.py",
        'ran("again", "shop.orders", "--json")',
    ),
    "writetime again shop.orders --rows --config docs/pipeline.example.yaml": (
        "tests/cli/test_batches.py",
        'ran("again", "shop.orders", "--rows")',
    ),
    'writetime void 1234 --config docs/pipeline.example.yaml --reason "node 7 lost CommitLog-7-1777890000010" --yes': (
        "tests/cli/test_batches.py",
        'ran("void", "2", "--reason", REASON, "--yes")',
    ),
    'airflow pools set writetime_spark 4 "Spark jobs of all pipelines"': ("tests/airflow/test_running.py", "airflow_commands_of_the_docs"),
    "airflow connections add spark_writetime": ("tests/airflow/test_running.py", "airflow_commands_of_the_docs"),
    "make prove NAME=ring DATACENTERS=2 OPS=240 ARGS=--tiny": ("tests/proof/ring/test_proof.py", "Topology(2, shipping)"),
    "make prove NAME=ring DATACENTERS=2 SHIPPING=1 OPS=240 ARGS=--tiny": ("tests/proof/ring/test_proof.py", "Topology(2, shipping)"),
    "gsutil ": ("tests/test_gsutil.py", "commands_of_the_docs()"),
}
UNTESTED = (
    "hdfs dfs -put",
    "docker buildx imagetools inspect",
    "docker build",
)
"""What needs a cluster, or a container engine, that is not here. A page that has such a command says so."""


def dropped_by_hand() -> list[str]:
    """The commands of README that copy a segment into the cdc_raw of the running demo, in their order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if "/cdc_raw/" in block]
    return [str(line) for line in block.splitlines()]


ELSEWHERE |= dict.fromkeys(dropped_by_hand(), ("tests/airflow/test_session.py", "dropped_by_hand()"))
RUN_HERE = re.compile(r"writetime (config|dump|schema|verify|--help)\b.*|make( help)?")


def commands() -> list[str]:
    """Lines of all `sh` blocks, without those that only set variables."""
    found: list[str] = []
    for page in PAGES:
        for block in re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            found += [line.strip() for line in block.splitlines() if line.strip() and not line.strip().startswith("#")]
    return sorted(set(found))


def test_there_are_commands() -> None:
    assert "make demo" in commands()


@pytest.fixture(scope="session")
def cdc_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a real ring left in its folders."""
    folder = tmp_path_factory.mktemp("ring")
    Recording.open().stage(folder)
    return folder


@pytest.mark.parametrize("command", commands())
def test_command(command: str, cdc_raw: Path) -> None:
    if command in ELSEWHERE:
        file, text = ELSEWHERE[command]
        assert text in (ROOT / file).read_text(encoding="utf-8"), f"{file} no longer runs `{command}`"
        return
    assert RUN_HERE.fullmatch(command), f"nothing runs `{command}`: run it here, or name in ELSEWHERE what does"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {
        **os.environ,
        "PATH": path,
        "KAFKA_PASSWORD": "from-the-environment",
        "CASSANDRA_PASSWORD": "also-a-secret",
        "CDC_RAW": str(cdc_raw),
    }
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "from-the-environment" not in done.stdout + done.stderr
    assert "also-a-secret" not in done.stdout + done.stderr


def for_people() -> list[tuple[Path, str]]:
    """Lines of all `console` blocks, each with its page: commands for a machine of the reader's."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^ *```console\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            found += [(page, line.strip()) for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    return found


@pytest.mark.parametrize(("page", "command"), for_people(), ids=lambda value: value if isinstance(value, str) else value.name)
def test_command_for_people(page: Path, command: str) -> None:
    if command.startswith(UNTESTED):
        assert "untested" in page.read_text(encoding="utf-8").lower(), page.name
        return
    ((file, text),) = [where for beginning, where in ELSEWHERE.items() if command.startswith(beginning)]
    assert text in (ROOT / file).read_text(encoding="utf-8"), f"{file} no longer runs `{command}`"


def examples() -> list[tuple[str, str]]:
    """All `yaml` blocks: parts of a pipeline's configuration."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"^ *```yaml\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        found += [(f"{page.name} {number}", block) for number, block in enumerate(blocks, 1)]
    return found


@pytest.mark.parametrize(("name", "text"), examples(), ids=lambda value: value if len(value) < 40 else "")
def test_example_of_a_configuration(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is what a pipeline's YAML may have, beside the little that it must have."""
    part = yaml.safe_load(text)
    whole: dict[str, Any] = {"pipeline": "p", "bucket": "bucket", "cluster": {"name": "ring", "datacenters": ["dc1"]}} | part
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    for variable in example_environment(tmp_path / "pipeline.yaml"):
        monkeypatch.setenv(variable, "x" * 16)
    (tmp_path / "ca.pem").write_text("", encoding="utf-8")
    assert load(tmp_path / "pipeline.yaml").pipeline == "p"


def test_local_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "adr").glob("*.md"))]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_ci_runs_what_a_contributor_is_asked_to_run() -> None:
    for name, job, command in (("ci", "ci", ".ci/run"), ("nightly", "all", ".ci/run all")):
        workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))
        steps = workflow["jobs"][job]["steps"]
        assert command in [step.get("run") for step in steps]
        (python,) = [step["with"]["python-version"] for step in steps if "setup-python" in step.get("uses", "")]
        assert f">={python}," in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        fields = yaml.safe_load(form.read_text(encoding="utf-8")).get("body", [])
        assert len({field["id"] for field in fields}) == len(fields), form.name


def test_the_event_in_the_readme_has_the_fields_of_the_envelope() -> None:
    from writetime.cassandra.types.types import NATIVE
    from writetime.events import envelope

    pa = pytest.importorskip("pyarrow", reason="the envelope is typed by Arrow, which comes with the extra `spark`")
    row_type = pa.struct([("id", pa.int32()), ("status", pa.string())])
    stored = pa.schema([("key", pa.struct([("id", pa.int32())])), ("before", row_type), ("after", row_type)])
    key = {"id": NATIVE["int"]}
    shape = envelope.Shape(key, {**key, "status": NATIVE["text"]}, stored)
    row = {
        "before": {"id": 7, "status": "new"},
        "after": {"id": 7, "status": "paid"},
        "op": "u",
        "processed_at": 1777894200_000000,
        "changed": ["status"],
        "changed_elements": "{}",
        "table_id": "5a1c395e-b41f-11e5-9f22-ba0be0483c18",
        "schema_version": "6fb32a4c9e0d1b57",
        "bounds": None,
        "nodes": ["a", "b", "c"],
        "replicas_expected": 3,
        "file": "CommitLog-7-1777890000001.log",
        "pos": 81235,
        "ts_micro": 1777894199123456,
        "batch": 42,
        "ordinal": 1017,
        "reason": None,
    }
    addresses = {"a": "10.0.0.11", "b": "10.0.0.12", "c": "10.0.0.13"}
    about = envelope.About("production", "shop", "orders", addresses, "shop")
    (example,) = re.findall(r"```json\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert json.loads(example) == json.loads(envelope.encode(shape.value(row, about)))
