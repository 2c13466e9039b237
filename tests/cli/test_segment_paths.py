"""Which files paths stand for, and in which order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cassandra.commitlog.examples import small_segment
from tests.storage import gcs_stub
from writetime.errors import ConfigError, CorruptSection, ObjectNotFound, StoreError
from writetime.storage import open_store
from writetime.storage.segment_object import pack
from writetime.storage.segment_paths import find, read


def put(folder: Path, *names: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode())


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Two nodes' folders, with what else lies in such places."""
    put(tmp_path / "b", "CommitLog-7-10.log", "CommitLog-7-9.log", "CommitLog-7-9_cdc.idx", "CommitLog-7-9.log.tmp", "notes.log")
    put(tmp_path / "a" / "cdc_raw", "CommitLog-6-300.log", "CommitLog-7-1000~0123abcd.log")
    put(tmp_path / "a" / ".writetime" / "tmp", "CommitLog-7-1.log")
    (tmp_path / "b" / "CommitLog-7-11.log").mkdir()
    return tmp_path


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with gcs_stub.running() as stub:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", stub.url)
        yield f"gs://{gcs_stub.BUCKET}"


def test_a_folder_of_several_nodes_by_node_then_by_id(nodes: Path) -> None:
    inputs, errors = find([str(nodes)])
    assert errors == []
    assert [each.where for each in inputs] == [
        f"{nodes}/a/cdc_raw/CommitLog-6-300.log",
        f"{nodes}/a/cdc_raw/CommitLog-7-1000~0123abcd.log",
        f"{nodes}/b/CommitLog-7-9.log",
        f"{nodes}/b/CommitLog-7-10.log",
    ]
    assert [each.id for each in inputs] == [300, 1000, 9, 10]
    assert inputs[2].read() == b"CommitLog-7-9.log"
    assert inputs[2].read_idx() == b"CommitLog-7-9_cdc.idx"
    assert inputs[3].read_idx() is None
    assert inputs[2].size == len(b"CommitLog-7-9.log")


def test_each_file_comes_once(nodes: Path) -> None:
    inputs, _ = find([str(nodes / "b"), f"file://{nodes}/b/CommitLog-7-9.log", str(nodes / "b" / "CommitLog-7-10.log")])
    assert [each.name for each in inputs] == ["CommitLog-7-9.log", "CommitLog-7-10.log"]


def test_a_file_of_any_name_has_the_id_of_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copy.bin").write_bytes(small_segment(77))
    (tmp_path / "short.bin").write_bytes(b"\0\0")
    inputs, _ = find([str(tmp_path / "copy.bin"), str(tmp_path / "short.bin")])
    assert [(each.name, each.id) for each in inputs] == [("short.bin", None), ("copy.bin", 77)]
    assert inputs[1].read_idx() is None
    monkeypatch.chdir(tmp_path)
    assert find(["copy.bin"])[0][0].where == "copy.bin"


def test_what_is_not_there_holds_up_nothing(nodes: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    inputs, errors = find([str(tmp_path / "nowhere"), str(tmp_path / "empty"), str(nodes / "b")])
    assert len(inputs) == 2
    assert [type(error) for error in errors] == [ObjectNotFound, ObjectNotFound]
    assert ["nowhere" in str(errors[0]), "empty" in str(errors[1])] == [True, True]
    inputs[0].place.path.joinpath(inputs[0].name).unlink()  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="CommitLog-7-9"):
        inputs[0].read()


def test_what_may_not_be_looked_into_is_told(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may look into everything, so the refusal is played."""
    (nodes / "b" / "CommitLog-7-12.log").symlink_to(nodes / "gone")
    os.mkfifo(nodes / "b" / "CommitLog-7-13.log")
    scandir = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("cdc_raw"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    inputs, errors = find([str(nodes)])
    assert [each.id for each in inputs] == [9, 10]
    assert {str(Path(error.obj or "").relative_to(nodes)): type(error) for error in errors} == {
        "a/cdc_raw": StoreError, "b/CommitLog-7-12.log": ObjectNotFound, "b/CommitLog-7-13.log": StoreError,
    }  # fmt: skip


@pytest.mark.advice("For this folder, give .")
def test_an_empty_path_is_not_this_folder(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(nodes)
    assert len(find(["."])[0]) == 4
    with pytest.raises(ConfigError, match="empty"):
        find([""])


def test_hours_of_the_archive_are_one_log(tmp_path: Path) -> None:
    for number, (hour, node) in enumerate([("01", "n1"), ("02", "n1"), ("01", "n2")]):
        put(tmp_path / "ring" / "date=2026-01-31" / f"hour={hour}" / "dc1" / node, f"CommitLog-7-{9 + number}.log")
    inputs, _ = find([str(tmp_path)])
    expected = [("n1", 9), ("n1", 10), ("n2", 11)]
    assert [(each.node, each.id) for each in inputs] == [(f"{tmp_path}/ring/dc1/{node}", number) for node, number in expected]
    assert all(Path(each.where).exists() for each in inputs)


def test_segments_that_the_archive_has_packed(tmp_path: Path) -> None:
    put(tmp_path, "CommitLog-7-8.log", "CommitLog-7-9.log")
    for name in ("CommitLog-7-8.log.zst", "CommitLog-7-10.log.zst", "CommitLog-7-11~0123abcd.log.zst", "renamed.zst"):
        (tmp_path / name).write_bytes(pack(name.encode(), 3))
    inputs, errors = find([str(tmp_path)])
    assert errors == []
    expected = ["CommitLog-7-8.log", "CommitLog-7-9.log", "CommitLog-7-10.log.zst", "CommitLog-7-11~0123abcd.log.zst"]
    assert [each.name for each in inputs] == expected, "while one is being packed it is there twice, and comes once"
    assert [each.read() for each in inputs] == [name.encode() for name in expected]
    (renamed,), _ = find([str(tmp_path / "renamed.zst")])
    assert (renamed.id, renamed.read(), read(renamed.where)) == (None, b"renamed.zst", b"renamed.zst")
    (tmp_path / "CommitLog-7-12.log.zst").write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptSection, match=r"CommitLog-7-12\.log\.zst"):
        read(str(tmp_path / "CommitLog-7-12.log.zst"))


def test_objects_and_prefixes_of_a_bucket(bucket: str) -> None:
    store = open_store(bucket)
    names = ["cdc/ring/dc1/n1/CommitLog-7-9.log", "cdc/ring/dc1/n1/CommitLog-7-10.log", "cdc/ring2/dc1/n1/CommitLog-7-8.log"]
    for name in [*names, "cdc/ring/dc1/n1/CommitLog-7-9_cdc.idx", "other"]:
        store.put(name, name.encode())
    inputs, errors = find([f"{bucket}/cdc/ring"])
    assert errors == []
    assert [each.where for each in inputs] == [f"{bucket}/{name}" for name in names[:2]]
    assert inputs[0].read() == names[0].encode()
    assert inputs[0].read_idx() == b"cdc/ring/dc1/n1/CommitLog-7-9_cdc.idx"
    assert inputs[1].read_idx() is None
    assert [each.where for each in find([f"{bucket}/{names[2]}"])[0]] == [f"{bucket}/{names[2]}"]
    assert len(find([bucket])[0]) == 3
    assert find([f"{bucket}/cdc/ri"])[0] == []
    assert isinstance(find([f"{bucket}/cdc/ri"])[1][0], ObjectNotFound)
    assert read(f"{bucket}/other") == b"other"


def test_one_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"{}")
    assert read(str(tmp_path / "x.json")) == read(f"file://{tmp_path}/x.json") == b"{}"
    with pytest.raises(ObjectNotFound):
        read(str(tmp_path / "y.json"))
