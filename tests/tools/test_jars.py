"""Jars by lock file: parsing, verification, rejection."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tools import jars
from tools.errors import JarError
from tools.jars import Artefact, Lock

PLAIN = Artefact("org.example", "thing", "1.0")
ARCHIVE = Artefact("org.example", "thing", "1.0", "tar.gz", "all")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class FakeMaven:
    """Provides the given files, and records the requests."""

    def __init__(self, content: dict[Artefact, bytes]) -> None:
        self.content = content
        self.asked: list[Artefact] = []

    def __call__(self, artefacts: Iterable[Artefact], folder: Path) -> None:
        for artefact in artefacts:
            self.asked.append(artefact)
            (folder / artefact.file_name).write_bytes(self.content[artefact])


@pytest.fixture
def maven(monkeypatch: pytest.MonkeyPatch) -> FakeMaven:
    fake = FakeMaven({PLAIN: b"plain", ARCHIVE: b"archive"})
    monkeypatch.setattr(jars, "fetch", fake)
    return fake


@pytest.fixture
def lock() -> Lock:
    return {"a": {PLAIN: digest(b"plain")}, "b": {PLAIN: digest(b"plain"), ARCHIVE: digest(b"archive")}}


@pytest.mark.parametrize(
    ("text", "artefact", "file_name"),
    [
        ("org.example:thing:1.0", PLAIN, "thing-1.0.jar"),
        ("org.example:thing:1.0:tar.gz:all", ARCHIVE, "thing-1.0-all.tar.gz"),
        ("org.example:thing:1.0:zip", Artefact("org.example", "thing", "1.0", "zip"), "thing-1.0.zip"),
    ],
)
def test_an_artefact_is_read_as_it_is_written(text: str, artefact: Artefact, file_name: str) -> None:
    assert Artefact.parse(text) == artefact
    assert str(artefact) == text
    assert artefact.file_name == file_name


@pytest.mark.parametrize("text", ["thing", "org.example:thing", "org.example::1.0", "a:b:c:d:e:f"])
def test_what_is_no_artefact_is_refused(text: str) -> None:
    with pytest.raises(JarError, match="is no artefact"):
        Artefact.parse(text)


def test_a_lock_file_is_read_as_it_was_written(tmp_path: Path, lock: Lock) -> None:
    jars.write_lock(lock, tmp_path / "jars.lock")
    assert jars.read_lock(tmp_path / "jars.lock") == lock


@pytest.mark.parametrize(
    "line", ["org.example:thing:1.0", "org.example:thing:1.0 sha256:abc", f"org.example:thing:1.0 sha256:{'X' * 64}", "sha256:" + "0" * 64]
)
def test_a_line_without_a_checksum_is_refused_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "jars.lock"
    path.write_text(f"# comment\n[a]\n{line}\n")
    with pytest.raises(JarError, match=r"jars.lock, line 3"):
        jars.read_lock(path)


def test_an_artefact_outside_a_group_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jars.lock"
    path.write_text(f"org.example:thing:1.0 sha256:{'0' * 64}\n")
    with pytest.raises(JarError, match="line 1"):
        jars.read_lock(path)


def test_what_is_missing_is_fetched_once_and_what_is_there_is_left(tmp_path: Path, lock: Lock, maven: FakeMaven) -> None:
    assert jars.sync(lock, tmp_path) == 2
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")) == [
        "a/thing-1.0.jar",
        "b/thing-1.0-all.tar.gz",
        "b/thing-1.0.jar",
    ]
    maven.asked.clear()
    assert jars.sync(lock, tmp_path) == 0
    assert maven.asked == []


def test_a_file_with_other_bytes_is_not_kept(tmp_path: Path, lock: Lock, maven: FakeMaven) -> None:
    maven.content[ARCHIVE] = b"something else"
    with pytest.raises(JarError, match=r"thing:1\.0:tar\.gz:all: fetched a file with SHA-256 .*jars.lock says"):
        jars.sync(lock, tmp_path)
    assert not (tmp_path / "b" / ARCHIVE.file_name).exists()


def test_a_damaged_file_is_fetched_again(tmp_path: Path, lock: Lock, maven: FakeMaven) -> None:
    jars.sync(lock, tmp_path)
    (tmp_path / "a" / PLAIN.file_name).write_bytes(b"plaim")
    assert jars.sync(lock, tmp_path) == 1
    assert (tmp_path / "a" / PLAIN.file_name).read_bytes() == b"plain"


def test_what_the_lock_does_not_name_leaves_the_class_path(tmp_path: Path, lock: Lock, maven: FakeMaven) -> None:
    jars.sync(lock, tmp_path)
    (tmp_path / "a" / "thing-0.9.jar").write_bytes(b"old")
    jars.sync(lock, tmp_path)
    assert [path.name for path in (tmp_path / "a").iterdir()] == [PLAIN.file_name]


def test_the_lock_of_this_repository_holds_what_it_is_made_from() -> None:
    lock = jars.read_lock()
    assert lock.keys() == jars.ROOTS.keys()
    for group, root in jars.ROOTS.items():
        assert {Artefact.parse(text) for text in root.artefacts} <= lock[group].keys()
    assert len(lock["kafka"]) > 40, "the broker needs all that it depends on"


def test_a_listing_of_maven_is_understood() -> None:
    listing = """
The following files have been resolved:
   org.example:thing:jar:1.0:compile
   org.example:thing:tar.gz:all:1.0:runtime -- module thing (auto)
"""
    assert list(jars._listed(listing)) == [PLAIN, ARCHIVE]
