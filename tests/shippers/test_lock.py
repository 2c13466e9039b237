"""One shipper per folder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shippers.lock import only_shipper
from tests.shippers.conftest import Folder
from tests.shippers.service import ROOT, command, running, until
from writetime.errors import ShipError, StoreError
from writetime.storage.local import LocalStore


@pytest.mark.advice("Stop one of the two.")
def test_the_second_shipper_says_so(tmp_path: Path) -> None:
    with only_shipper(tmp_path):
        with pytest.raises(ShipError, match="another shipper"), only_shipper(tmp_path):
            pytest.fail("two shippers hold one folder")
        script = "import sys; from pathlib import Path; from shippers.lock import only_shipper\nwith only_shipper(Path(sys.argv[1])): pass"
        other = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
        assert other.returncode == 1
        assert "another shipper holds the lock" in other.stderr
    with only_shipper(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_made_anew_is_locked_too(tmp_path: Path) -> None:
    folder, before = tmp_path / "cdc_raw", tmp_path / "before"
    folder.mkdir()
    with only_shipper(folder) as lock:
        lock.renew()
        folder.rename(before)
        with pytest.raises(ShipError, match="failed to open the folder"):
            lock.renew()
        folder.mkdir()
        with only_shipper(folder), pytest.raises(ShipError, match="another shipper"):
            lock.renew()
        with pytest.raises(ShipError, match="another shipper"), only_shipper(before):
            pytest.fail("the lock was given up without another")
        lock.renew()
        with pytest.raises(ShipError, match="another shipper"), only_shipper(folder):
            pytest.fail("two shippers hold one folder")
        with only_shipper(before):
            pass


def test_a_service_keeps_the_folder_that_is_made_anew_to_itself(folder: Folder, tmp_path: Path) -> None:
    with running(folder.path, str(tmp_path / "bucket"), stderr=subprocess.DEVNULL):
        folder.segment(1)
        assert until(lambda: folder.names == [])
        folder.path.rename(tmp_path / "before")
        folder.path.mkdir()
        folder.segment(2)
        assert until(lambda: folder.names == [])
        other = subprocess.run(
            command(folder.path, str(tmp_path / "bucket"), "--once"), cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert other.returncode == 1
    assert "another shipper holds the lock" in other.stderr


def test_the_lock_goes_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trouble"), only_shipper(tmp_path):
        raise ValueError("trouble")
    with only_shipper(tmp_path):
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF])
def test_a_file_system_without_locks(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ShipError, match=r"does not lock the folder: .*local_lock=flock"), only_shipper(tmp_path):
        pytest.fail("shipped without a lock")
    with pytest.raises(StoreError, match=r"does not lock the file: .*local_lock=flock") as caught:
        LocalStore(tmp_path).put("name", b"")
    assert not caught.value.retriable
    assert LocalStore(tmp_path).head("name") is None


def test_the_command_says_that_there_are_no_locks(folder: Folder, tmp_path: Path) -> None:
    folder.segment(1)
    prelude = "import errno, fcntl\ndef flock(*_): raise OSError(errno.ENOLCK, 'No locks available')\nfcntl.flock = flock"
    line = command(folder.path, str(tmp_path / "bucket"), "--once", prelude=prelude)
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "lock cdc_raw" in done.stderr
    assert "No locks available" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(folder.names) == 2


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ShipError, match=r"node\.cdc_raw"), only_shipper(tmp_path / "nowhere"):
        pytest.fail("locked a folder that is not there")
