"""The Makefile explains itself, and set-up says what is missing."""

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


def targets() -> list[str]:
    (line,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return line.split()


def test_help_is_the_default_and_lists_every_target() -> None:
    listed = re.findall(r"^  make (\S+) +\S", run("make"), re.MULTILINE)
    assert listed == targets()


@pytest.mark.parametrize("target", targets())
def test_every_target_has_commands_that_make_understands(target: str) -> None:
    assert run("make", "--dry-run", target)


def test_jars_and_libraries_survive_clean() -> None:
    assert not re.search(r"rm .*(\.venv|jars)", run("make", "--dry-run", "clean"))


@pytest.fixture
def bare_path(tmp_path: Path) -> dict[str, str]:
    """An environment where neither Python, Java nor Maven can be found."""
    for program in ("bash", "grep", "dirname", "readlink"):
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


def test_a_java_home_of_another_version_does_not_count(bare_path: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "jdk"
    home.mkdir()
    (home / "release").write_text('JAVA_VERSION="21.0.2"\n')
    probe = f"grep -qs '^JAVA_VERSION=\"17' {home}/release && echo yes || echo no"
    assert shell(probe, bare_path).strip() == "no"
