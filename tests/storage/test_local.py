"""What is particular to a folder: repair by hand, leftovers, faults of the disk, and that nothing
half-written is ever seen."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from writetime.errors import ChecksumMismatch, ConfigError, ObjectNotFound, PreconditionFailed, StoreError, StoreUnavailable
from writetime.storage import local, open_store
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def files(root: Path) -> list[str]:
    """Everything on disk but lock files."""
    found = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.startswith(".writetime/locks/"))


def test_open_store_knows_folders(root: Path) -> None:
    assert open_store(f"file://{root}").url == open_store(str(root)).url == str(root)
    with pytest.raises(ConfigError, match="ftp://x"):
        open_store("ftp://x")


def test_objects_are_plain_files(store: LocalStore, root: Path) -> None:
    info = store.put("a/b.txt", b"hello")
    path = root / "a" / "b.txt"
    assert path.read_bytes() == b"hello"
    assert path.stat().st_mtime_ns == info.generation
    assert path.stat().st_nlink == 1


def modes(root: Path) -> set[tuple[bool, int]]:
    """Whether it is a folder, and its mode, of all that lies there."""
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in [root, *root.rglob("*")]}


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_a_bucket_is_its_users_alone(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "bucket"
    store = LocalStore(root)
    store.put("cdc/c/x.log", b"secret")
    store.copy("cdc/c/x.log", "cdc_archive/x.log")
    assert modes(root) == {(True, 0o700), (False, 0o600)}
    assert stat.S_IMODE(root.parent.stat().st_mode) == 0o755, "others may have something there"


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize("mode", [0o770, 0o750, 0o755])
def test_a_bucket_whose_folder_was_made_before_keeps_its_mode(mode: int, root: Path) -> None:
    root.mkdir(parents=True)
    root.chmod(mode)
    LocalStore(root).put("cdc/c/x.log", b"shared")
    assert modes(root) == {(True, mode), (False, mode & 0o666)}


def test_repair_by_hand(store: LocalStore, root: Path, tmp_path: Path) -> None:
    before = store.put("a/b", b"damaged", metadata={"sealed_at": "x"})
    good = tmp_path / "good"
    good.write_bytes(b"repaired")
    subprocess.run(["cp", str(good), str(root / "a" / "b")], check=True)
    after = store.head("a/b")
    assert after is not None
    assert after.generation != before.generation
    assert (after.size, after.crc32c, after.metadata) == (8, crc32c(b"repaired"), {})
    assert list(store.list()) == [after]
    with pytest.raises(PreconditionFailed):
        store.put("a/b", b"x", if_generation=before.generation)
    assert store.put("a/b", b"x", if_generation=after.generation).generation > after.generation


def test_a_file_put_there_by_hand_is_an_object(store: LocalStore, root: Path) -> None:
    (root / "cdc").mkdir(parents=True)
    (root / "cdc" / "new").write_bytes(b"by hand")
    copied = store.copy("cdc/new", "archive/new")
    assert (copied.crc32c, copied.metadata) == (crc32c(b"by hand"), {})
    store.delete("cdc/new")
    assert store.head("cdc/new") is None


def test_what_is_no_object_is_not_listed(store: LocalStore, root: Path) -> None:
    store.put("a", b"")
    (root / "line\nfeed").write_bytes(b"")
    (root / "folder").mkdir()
    (root / "link").symlink_to(root.parent)
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe")).write_bytes(b"")
    assert [info.name for info in store.list()] == ["a"]


def test_one_name_cannot_lie_under_another(store: LocalStore) -> None:
    store.put("a/b", b"")
    store.put("c", b"")
    for name in ("a", "c/d"):
        with pytest.raises(StoreError) as caught:
            store.put(name, b"", if_generation=0)
        assert not isinstance(caught.value, PreconditionFailed)
        assert store.head(name) is None
        with pytest.raises(ObjectNotFound):
            store.delete(name)


def test_nothing_is_left_behind(store: LocalStore, root: Path) -> None:
    store.put("a", b"1")
    store.put("a", b"2", metadata={"x": "y"})
    with pytest.raises(PreconditionFailed):
        store.put("a", b"3", if_generation=0)
    info = store.head("a")
    assert info is not None
    assert files(root) == [f".writetime/meta/a.{info.generation}.json", "a"]
    store.delete("a")
    assert files(root) == []


def test_leftovers_of_killed_writers_are_swept(root: Path) -> None:
    temporary = root / ".writetime" / "tmp"
    temporary.mkdir(parents=True)
    for name, age in (("old", 2 * 86400), ("young", 60)):
        (temporary / name).write_bytes(b"")
        stamp = (temporary / name).stat().st_mtime - age
        os.utime(temporary / name, (stamp, stamp))
    LocalStore(root).put("a", b"")
    assert [path.name for path in temporary.iterdir()] == ["young"]


def test_lost_notes_are_made_good(store: LocalStore, root: Path) -> None:
    info = store.put("a", b"hello", metadata={"x": "y"})
    shutil.rmtree(root / ".writetime")
    found = store.head("a")
    assert found is not None
    assert (found.crc32c, found.generation, found.metadata) == (info.crc32c, info.generation, {})


def test_bytes_that_change_on_their_way_to_the_disk(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = local._write

    def flip(path: Path, pieces: Any, mode: int) -> tuple[int, int]:
        told = real(path, pieces, mode)
        damaged = bytearray(path.read_bytes())
        damaged[0] ^= 1
        path.write_bytes(damaged)
        return told

    monkeypatch.setattr(local, "_write", flip)
    with pytest.raises(ChecksumMismatch, match="read back"):
        store.put("a", b"hello")
    assert files(root) == []


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [(errno.ENOSPC, StoreUnavailable, "Make room"), (errno.EACCES, StoreError, "owner and mode"), (errno.EIO, StoreError, "Input/output")],
)
def test_faults_of_the_disk(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StoreError], hint: str, root: Path
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(local.os, "fsync", fail)
    root.mkdir()
    (root / ".writetime").mkdir()
    for name in ("tmp", "locks"):
        (root / ".writetime" / name).mkdir()
    with pytest.raises(kind, match=hint) as caught:
        store.put("a", b"hello")
    assert type(caught.value) is kind
    assert files(root) == []


@pytest.mark.parametrize("step", ["_verify", "_set_generation", "_write_synced", "_name"])
def test_a_writer_that_dies_leaves_no_object(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    class Died(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Died

    before = store.put("there", b"old", metadata={"m": "old"})
    with monkeypatch.context() as patch:
        patch.setattr(local, step, die)
        for name in ("fresh", "there"):
            with pytest.raises(Died):
                store.put(name, b"new")
    assert store.head("fresh") is None
    assert store.head("there") == before
    assert store.read("there") == b"old"
    assert store.put("fresh", b"new", if_generation=0).size == 3


def test_generations_grow_even_if_the_clock_goes_back(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    first = store.put("a", b"1")
    monkeypatch.setattr(local.time, "time_ns", lambda: first.generation - 10**12)
    second = store.put("a", b"2")
    assert second.generation > first.generation
    assert store.head("a") == second


def test_generations_grow_on_a_file_system_with_coarse_times(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., None] = os.utime

    def whole_seconds(path: Path, *, ns: tuple[int, int]) -> None:
        real(path, ns=(ns[0] // 10**9 * 10**9, ns[1] // 10**9 * 10**9))

    monkeypatch.setattr(local.os, "utime", whole_seconds)
    generations = [store.put("a", str(n).encode(), metadata={"n": str(n)}).generation for n in range(4)]
    assert generations == sorted(set(generations))
    found = store.head("a")
    assert found is not None
    assert found.metadata == {"n": "3"}


def test_a_look_that_loses_the_race_looks_again(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("a", b"1", metadata={"n": "1"})
    real, overwritten = local.LocalStore._info, []

    def overwrite_first(self: LocalStore, name: str, file: Any) -> Any:
        if not overwritten:
            overwritten.append(True)
            LocalStore(self.url).put(name, b"22", metadata={"n": "2"})
        return real(self, name, file)

    monkeypatch.setattr(local.LocalStore, "_info", overwrite_first)
    found = store.head("a")
    assert found is not None
    assert (found.size, found.metadata) == (2, {"n": "2"})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"5",
        b"null",
        b"\xff",
        b'{"crc32c": "x", "metadata": {}}',
        b'{"crc32c": -1, "metadata": {}}',
        b'{"crc32c": 1, "metadata": 5}',
    ],
)
@pytest.mark.advice("If the object is as it should be, remove that file")
def test_a_damaged_record_of_the_checksum_is_an_error_of_the_store(tmp_path: Path, content: bytes) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"data")
    (meta,) = (tmp_path / ".writetime" / "meta").rglob("*.json")
    meta.write_bytes(content)
    for call in (lambda: store.head("a/b"), lambda: list(store.list()), lambda: store.copy("a/b", "c")):
        with pytest.raises(StoreError, match="damaged"):
            call()
    meta.unlink()
    assert store.head("a/b") is not None


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_does_not_sync_folders(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SMB; files are synced all the same."""
    sync, synced = os.fsync, []

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        synced.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    store = LocalStore(tmp_path / "bucket")
    store.put("a/b", b"1", if_generation=0)
    assert store.read("a/b") == b"1"
    assert synced
    store.delete("a/b")
    assert store.head("a/b") is None
