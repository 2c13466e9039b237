"""A JDK 17 is found, and no other version is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import java
from tools.errors import MissingPrerequisite


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    java.java_home.cache_clear()
    yield
    java.java_home.cache_clear()


def jdk(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("17", 17), ("21.0.2", 21), ("1.8.0_402", 1)])
def test_the_release_file_tells_the_version(tmp_path: Path, version: str, major: int) -> None:
    assert java.major_version(jdk(tmp_path / "jdk", version)) == major


def test_a_folder_without_a_jdk_has_none(tmp_path: Path) -> None:
    assert java.major_version(tmp_path) is None


def test_java_home_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = jdk(tmp_path / "mine", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home
    assert java.java() == str(home / "bin" / "java")


def test_a_java_home_of_another_version_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: iter([jdk(tmp_path / "a", "21.0.2"), jdk(tmp_path / "b", "17.0.1")]))
    assert java.java_home() == tmp_path / "b"


def test_without_one_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: iter([]))
    with pytest.raises(MissingPrerequisite, match="openjdk-17-jdk-headless"):
        java.java_home()
