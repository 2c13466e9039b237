"""What is declared is imported, and what is imported is declared."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.test_rooms import ROOMS, imports, modules

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMES_WITH = {
    "croniter": "apache-airflow",
    "fastapi": "apache-airflow",
    "jinja2": "apache-airflow",
    "llvmlite": "numba",
    "markupsafe": "apache-airflow",
    "py4j": "pyspark",
    "requests": "google-cloud-storage",
    "starlette": "apache-airflow",
    "urllib3": "google-cloud-storage",
}
"""Libraries that are part of what another one's users see: its errors, its base classes, what it is written
with."""
NOT_IMPORTED = {
    "apache-airflow": "its modules come in apache-airflow-core and apache-airflow-task-sdk",
    "pandas": "PySpark wants it for mapInArrow, at a version that it works with",
}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> set[str]:
    wanted = [*PROJECT["dependencies"], *(each for extra in extras for each in PROJECT["optional-dependencies"][extra])]
    return {normal(re.split(r"[\[<>=!~; ]", each)[0]) for each in wanted}


def imported(*rooms: str) -> dict[str, set[str]]:
    """Distributions that have each top-level module that these rooms import."""
    known = metadata.packages_distributions()
    top = {name.split(".")[0] for room in rooms for path in modules(room) for name in imports(path)}
    own = {path.stem for path in modules("plugins")} | set(ROOMS)
    return {name: {normal(each) for each in known.get(name, [])} for name in top - set(sys.stdlib_module_names) - own}


def test_what_is_declared_is_imported() -> None:
    used = set().union(*imported(*ROOMS).values())
    assert declared("ship", "s3", "spark", "airflow") - used == set(NOT_IMPORTED)


@pytest.mark.parametrize(
    ("room", "extras"),
    [
        ("writetime", ("ship", "s3", "spark", "airflow")),
        ("shippers", ("ship",)),
        ("spark_jobs", ("spark",)),
        ("plugins", ("airflow", "spark")),
        ("dags", ("airflow",)),
    ],
)
def test_what_is_imported_is_declared(room: str, extras: tuple[str, ...]) -> None:
    here = declared(*extras)
    missing = {name for name, found in imported(room).items() if not found & here and COMES_WITH.get(name) not in here}
    # Airflow's parts are packages of their own.
    assert {name for name in missing if not (name == "airflow" and "apache-airflow" in here)} == set()
