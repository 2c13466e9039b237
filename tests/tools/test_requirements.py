"""requirements.txt installs the same environment everywhere, and the environment is consistent."""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = (ROOT / "requirements.txt").read_text(encoding="utf-8")
# A requirement with its continuation lines.
ENTRIES = re.findall(r"^[^\s#](?:[^\n]*\\\n)*[^\n]*$", REQUIREMENTS, re.MULTILINE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    return {normal(name): pinned for name, pinned in re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", REQUIREMENTS, re.MULTILINE)}


def wanted() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.split()[0])
def test_every_requirement_is_pinned_and_has_its_hashes(entry: str) -> None:
    assert re.match(r"[A-Za-z0-9._-]+==[^\s*]+ (; .*)?\\?\n?", entry), entry
    assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_there_are_requirements_at_all() -> None:
    assert len(ENTRIES) > 100


@pytest.mark.parametrize("requirement", wanted())
def test_everything_that_pyproject_asks_for_is_in_it(requirement: str) -> None:
    match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:==(\S+))?", requirement)
    assert match
    pinned = pins().get(normal(match[1]))
    assert pinned is not None, f"{requirement}: run make lock"
    assert match[2] in (None, pinned), f"{requirement} is pinned to {pinned}: run make lock"


def test_no_index_is_built_in() -> None:
    assert "--index-url" not in REQUIREMENTS
    assert "://" not in REQUIREMENTS
    assert "make lock" in REQUIREMENTS.splitlines()[1]


def test_pyspark_and_its_client_have_one_version() -> None:
    assert version("pyspark") == version("pyspark-client") == pins()["pyspark"] == pins()["pyspark-client"]


@pytest.mark.parametrize("name", ["pyspark", "pyspark-client"])
def test_no_other_package_has_overwritten_a_file_of(name: str) -> None:
    """pyspark and pyspark-client write the same paths (docs/adr/0002): with other versions, `pip check` would
    still be content.
    """
    recorded = [file for file in distribution(name).files or [] if file.hash is not None and file.suffix == ".py"]
    assert len(recorded) > 100
    damaged = [str(file) for file in recorded if digest(Path(str(file.locate()))) != file.hash.value]
    assert damaged == []


def digest(path: Path) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).decode().rstrip("=")
