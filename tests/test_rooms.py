"""Who may know whom, read from the source by AST; and that pyspark on disk is one package and not a mixture
of two.

Strategy: every import statement of every module is looked at, those inside functions too. A room may import
`writetime`, itself and libraries; `writetime` imports no room and no heavyweight; DAGs import plugin modules
by their bare names, as Airflow gives them."""

from __future__ import annotations

import ast
import base64
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("writetime", "shippers", "spark_jobs", "plugins", "dags")
WORKSHOP = ("tests", "proof", "tools", "benchmarks")
ALLOWED = {
    "writetime": {"writetime"},
    "shippers": {"writetime", "shippers"},
    "spark_jobs": {"writetime", "spark_jobs"},
    "plugins": {"writetime", "plugins"},
    "dags": {"writetime", "dags", "plugins"},
}
NETWORK = {
    "aiohttp", "asyncio", "boto3", "botocore", "cassandra", "confluent_kafka", "ftplib", "google.api_core", "google.auth", "google.cloud",
    "grpc", "http", "httpx", "requests", "smtplib", "socket", "socketserver", "ssl", "urllib.request", "urllib3", "xmlrpc",
}  # fmt: skip
FORBIDDEN = {
    "writetime": {"airflow", "pyspark", "pyiceberg"} | NETWORK,
    "shippers": {"airflow", "pyspark", "pyarrow", "numpy", "numba", "lance"},
    "spark_jobs": {"airflow", "cassandra"},
    "plugins": {"pyspark"},
    "dags": {"pyspark"},
}
MAY_USE_THE_NETWORK = {
    *("writetime/storage/gcs.py", "writetime/storage/s3.py", "writetime/storage/s3_endpoint.py"),
    *("writetime/storage/s3_credentials.py", "spark_jobs/cassandra_reader.py"),
}
"""What talks to a store, asks for its credentials or has its library read its files, and what talks to the ring."""


LAYERS = ("errors untrusted charts signals", "cassandra", "kernels", "events storage", "config", "pipeline", "monitoring", "cli")
"""The rooms inside writetime, from the lowest: a room imports from those below it and from itself."""


def modules(room: str) -> list[Path]:
    return sorted(path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts)


def parsed(path: Path) -> ast.Module:
    """The module. Python 3.11 counts the depth of all threads' syntax trees as one, and stumbles when another
    thread compiles too."""
    text = path.read_text(encoding="utf-8")
    for _ in range(5):
        with suppress(SystemError):
            return ast.parse(text, str(path))
    return ast.parse(text, str(path))


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a module imports, `from a import b` as a.b. A relative import is named from its
    package."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            module = (node.module,) if node.module else ()
            yield from (".".join((*parents, *module, alias.name)) for alias in node.names)


def is_under(name: str, roots: set[str] | tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def offences(room: str) -> list[str]:
    found = []
    for path in modules(room):
        where = path.relative_to(ROOT).as_posix()
        forbidden = FORBIDDEN[room] - (NETWORK if where in MAY_USE_THE_NETWORK else set())
        strangers = (set(ROOMS) | set(WORKSHOP)) - ALLOWED[room]
        found += [f"{where} imports {name}" for name in imports(path) if is_under(name, forbidden | strangers)]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_who_imports_whom(room: str) -> None:
    assert modules(room), f"there is no {room}"
    assert offences(room) == []


def test_rooms_do_not_import_plugins_by_their_bare_names() -> None:
    """Airflow puts plugins on its path, so `import writetime_x` would work by accident."""
    bare = {path.stem for path in modules("plugins")}
    for room in ("writetime", "shippers", "spark_jobs"):
        assert [name for path in modules(room) for name in imports(path) if is_under(name, bare)] == []


def test_plugins_have_names_of_their_own() -> None:
    """Airflow executes each of them as a top-level module of its bare name."""
    for path in modules("plugins"):
        assert path.stem.startswith("writetime_"), path
        assert path.stem not in sys.stdlib_module_names


def test_the_check_sees_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of offence, once, against the same functions."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    lines = {
        "import shippers.agent": "writetime",
        "def f():\n    from pyspark.sql import functions": "writetime",
        "from urllib.request import urlopen": "writetime",
        "from urllib import request": "writetime",
        "if True:\n    import google.cloud.storage": "writetime",
        "from ..spark_jobs import ingest": "shippers",
        "import tools.services": "spark_jobs",
        "import spark_jobs": "plugins",
        "import pyspark": "dags",
    }
    for number, (text, room) in enumerate(lines.items()):
        path = tmp_path / room / f"m{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert [offence for offence in offences(room) if f"m{number}.py" in offence], text
    (tmp_path / "writetime" / "storage").mkdir()
    (tmp_path / "writetime" / "storage" / "gcs.py").write_text("import google.cloud.storage\nfrom urllib.parse import quote")
    assert [offence for offence in offences("writetime") if "gcs.py" in offence] == []


# --- walls inside writetime


def graph() -> dict[str, set[str]]:
    """Modules of the product by their dotted names, and which of them each imports, inside functions too."""
    found = {dotted(path): path for room in ROOMS for path in modules(room)}
    return {name: {target for line in imports(path) if (target := known(line, found)) and target != name} for name, path in found.items()}


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def known(line: str, found: Mapping[str, Path]) -> str | None:
    """The module that an import of `a.b.c` names: a.b.c, or a.b if c is something in it."""
    return next((name for name in (line, line.rpartition(".")[0]) if name in found), None)


def floor(module: str) -> int | None:
    """How high a room of writetime is. None for its root and for what is outside."""
    package, _, rest = module.partition(".")
    inside = rest.partition(".")[0]
    floors = [number for number, names in enumerate(LAYERS) if inside in names.split()]
    return floors[0] if package == "writetime" and floors else None


def upward(edges: Mapping[str, set[str]]) -> list[str]:
    """Imports from a room that is higher, or from another one on the same floor."""
    found = []
    for module, targets in edges.items():
        for target in targets:
            here, there = floor(module), floor(target)
            if here is None or there is None or module.split(".")[1] == target.split(".")[1]:
                continue
            if there > here or (there == here and here > 0):
                found.append(f"{module} imports {target}")
    return sorted(found)


def circles(edges: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other, by way of others too."""
    sorter = TopologicalSorter(edges)
    try:
        sorter.prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def private_helpers(room: str) -> list[str]:
    """Names with a leading underscore that a module takes from another room."""
    found = []
    for path in modules(room):
        here = dotted(path).split(".")[:2]
        for line in imports(path):
            if line.split(".")[0] in ROOMS and re.match(r"_[a-z]|_[A-Z]", line.split(".")[-1]) and line.split(".")[:2] != here:
                found.append(f"{dotted(path)} imports {line}")
    return found


def test_arrows_inside_writetime_go_down() -> None:
    """Every module is in a room that has a floor; nothing imports from above."""
    edges = graph()
    assert [name for name in edges if name.startswith("writetime.") and floor(name) is None] == []
    assert upward(edges) == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles(graph()) == []


@pytest.mark.parametrize("room", ROOMS)
def test_private_helpers_stay_in_their_room(room: str) -> None:
    assert private_helpers(room) == []


def test_the_walls_notice_a_wrong_arrow() -> None:
    assert upward({"writetime.storage.gcs": {"writetime.pipeline.planner"}, "writetime.events.json": {"writetime.storage.gcs"}}) == [
        "writetime.events.json imports writetime.storage.gcs",
        "writetime.storage.gcs imports writetime.pipeline.planner",
    ]
    assert upward({"writetime.cli.status": {"writetime.cassandra.model", "writetime.errors"}}) == []
    assert set(circles({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


# --- pyspark and pyspark-client write the same files; the Airflow provider asks for the latter (docs/adr/0002)


def installed(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed: the extras `spark` and `airflow` are")


def test_pyspark_and_its_client_are_of_one_version() -> None:
    assert installed("pyspark-client").version == installed("pyspark").version


def test_pyspark_has_its_jars() -> None:
    jars = Path(str(installed("pyspark").locate_file("pyspark/jars")))
    assert len(list(jars.glob("spark-core_*.jar"))) == 1


@pytest.mark.parametrize(
    "file",
    [
        "pyspark/__init__.py",
        "pyspark/version.py",
        "pyspark/core/context.py",
        "pyspark/java_gateway.py",
        "pyspark/serializers.py",
        "pyspark/sql/session.py",
        "pyspark/sql/dataframe.py",
        "pyspark/sql/classic/dataframe.py",
        "pyspark/sql/connect/session.py",
        "pyspark/sql/pandas/serializers.py",
        "pyspark/sql/types.py",
        "pyspark/worker.py",
    ],
)
def test_the_files_of_pyspark_are_those_it_was_installed_with(file: str) -> None:
    distribution = installed("pyspark")
    (entry,) = [path for path in distribution.files or [] if str(path) == file]
    assert entry.hash is not None
    found = hashlib.new(entry.hash.mode, Path(str(entry.locate())).read_bytes()).digest()
    assert base64.urlsafe_b64encode(found).decode().rstrip("=") == entry.hash.value
