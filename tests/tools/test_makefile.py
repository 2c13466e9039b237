"""The Makefile lists its targets, and set-up names missing programs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash") or "/bin/bash"


def run(*command: str, env: dict[str, str] | None = None) -> str:
    return subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout


def listed(*command: str) -> list[str]:
    """What a list names, by `make`, `make prove` or `make bench`."""
    return re.findall(r"^  make (?:\w+ NAME=)?(\S+) +\S", run(*command), re.MULTILINE)


def phony() -> list[str]:
    first, *_ = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return first.split()


INNER = {
    **{name: f"prove NAME={name}" for name in ("ring", "fuzz", "fuzz-java", "kill-shipper", "kill-batch", "pressure", "orders")},
    "test-decoder": "prove NAME=decoder",
    "bootstrap-proof": "prove NAME=bootstrap",
    "test-airflow": "prove NAME=airflow",
    **{
        f"bench-{name}": f"bench NAME={name}"
        for name in (
            *("decode", "batch", "state", "growth", "plan", "refused", "page", "paint"),
            *("upload", "freshness", "schedule", "publish", "archive"),
        )
    },
}
"""Targets that are not listed, by what runs each."""


def test_help_is_the_default_and_lists_every_target() -> None:
    assert listed("make") == phony()
    assert len(phony()) <= 18


def test_proofs_and_benchmarks_are_listed_by_name() -> None:
    proofs, benches = listed("make", "prove"), listed("make", "bench", "NAME=list")
    new = {
        "prove NAME=complete",
        "prove NAME=engines",
        "prove NAME=interleavings",
        "prove NAME=kill",
        "prove NAME=upgrade",
        "bench NAME=commits",
        "bench NAME=judge",
        "bench NAME=nodes",
        "bench NAME=whole",
    }
    assert {f"prove NAME={name}" for name in proofs} | {f"bench NAME={name}" for name in benches} == {*INNER.values(), *new}


def test_the_benchmark_without_a_name_is_the_judge() -> None:
    assert "python -m benchmarks.judge --quick" in run("make", "--dry-run", "bench", "ARGS=--quick")


@pytest.mark.parametrize("target", phony())
def test_every_target_has_commands_that_make_understands(target: str) -> None:
    assert run("make", "--dry-run", target)


@pytest.mark.parametrize("target", INNER)
def test_listed_commands_pass_variables_on(target: str) -> None:
    variables = ["SEED=4711", "OPS=12", "KILLS=3", "CASES=5", "ROWS=9", "ORDERS=2", "ARGS=--json"]
    (command,) = [line for line in run("make", "--dry-run", target, *variables).splitlines() if "--json" in line]
    assert command in run("make", "--dry-run", *INNER[target].split(), *variables).splitlines()


@pytest.mark.parametrize("name", ["ring", "upgrade", "kill-batch", "kill"])
def test_proofs_on_s3_build_the_server_first(name: str) -> None:
    def commands(*more: str) -> list[str]:
        run_by = run("make", "--dry-run", "prove", f"NAME={name}", *more).splitlines()
        return [line for line in run_by if "tools.s3_server" in line or "-m proof." in line]

    (plain,) = commands()
    build, proof = commands("STORE=s3")
    assert "--store" not in plain
    assert build.endswith("-m tools.s3_server")
    assert "--store s3" in proof


@pytest.mark.parametrize("command", ["prove", "bench"])
def test_an_unknown_name_fails_and_lists_the_names(command: str) -> None:
    done = subprocess.run(["make", command, "NAME=nothing"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no nothing" in done.stderr
    assert f"make {command} NAME=" in done.stdout


def test_jars_and_libraries_survive_clean() -> None:
    assert not re.search(r"rm .*(\.venv|jars)", run("make", "--dry-run", "clean"))


@pytest.fixture
def bare_path(tmp_path: Path) -> dict[str, str]:
    """An environment where neither Python, Java nor Maven can be found."""
    for program in ("bash", "cat", "dirname", "grep", "id", "readlink"):
        (tmp_path / program).symlink_to(shutil.which(program) or "")
    return {"PATH": str(tmp_path)}


def shell(code: str, env: dict[str, str]) -> str:
    done = subprocess.run([BASH, "-c", f"source tools/setup.sh; {code}"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_set_up_notices_what_is_missing(bare_path: dict[str, str]) -> None:
    missing = shell("has_jdk() { return 1; }; missing_packages", bare_path).split()
    assert missing == ["python3.11", "python3.11-venv", "openjdk-17-jdk-headless", "maven"]


def test_set_up_has_nothing_to_ask_for_here() -> None:
    assert shell("missing_packages", dict(os.environ)).strip() == ""


def test_set_up_says_what_to_install(bare_path: dict[str, str]) -> None:
    told = shell("explain 'openjdk-17-jdk-headless maven'", bare_path)
    assert "JDK 17" in told
    assert "Maven 3" in told
    assert "Python" not in told


def prerequisites(tmp_path: Path, env: dict[str, str], *, root: bool, apt: str) -> tuple[int, str, str]:
    """Exit code, output, and what apt-get was asked, with Maven missing at first."""
    state = tmp_path / "missing"
    state.write_text("maven\n")
    stubs = f"may_install() {{ {'true' if root else 'false'}; }}; missing_packages() {{ echo $(<{state}); }}; {apt}"
    code = f"source tools/setup.sh; {stubs} require_prerequisites"
    done = subprocess.run([BASH, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    log = tmp_path / "apt.log"
    return done.returncode, done.stdout + done.stderr, log.read_text() if log.exists() else ""


def test_what_is_missing_is_installed_where_that_may_be(tmp_path: Path, bare_path: dict[str, str]) -> None:
    # The installation's own output goes to /dev/null, so the stub keeps a log.
    apt = f"apt-get() {{ echo $* >>{tmp_path}/apt.log; [[ $1 == update ]] || : >{tmp_path}/missing; }};"
    code, _, asked = prerequisites(tmp_path, bare_path, root=True, apt=apt)
    assert code == 0
    assert asked.splitlines() == ["update -qq", "install -y -qq --no-install-recommends maven"]


def test_an_installation_that_fails_ends_with_what_to_do(tmp_path: Path, bare_path: dict[str, str]) -> None:
    code, told, _ = prerequisites(tmp_path, bare_path, root=True, apt="apt-get() { return 100; };")
    assert code == 1
    assert "apt-get could not install them" in told
    assert "Maven 3" in told


def test_nothing_is_installed_where_that_may_not_be(tmp_path: Path, bare_path: dict[str, str]) -> None:
    code, told, asked = prerequisites(tmp_path, bare_path, root=False, apt=f"apt-get() {{ echo $* >>{tmp_path}/apt.log; }};")
    assert (code, asked) == (1, "")
    assert "install them and run this again" in told


@pytest.mark.parametrize(("version", "counts"), [("17.0.15", True), ("21.0.2", False)])
def test_only_a_java_of_the_right_version_counts(version: str, counts: bool, bare_path: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "jdk"
    home.mkdir()
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    told = shell("is_jdk $JAVA_HOME && echo yes || echo no", bare_path | {"JAVA_HOME": str(home)})
    assert told.strip() == ("yes" if counts else "no")
