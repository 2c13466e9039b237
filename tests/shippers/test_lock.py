"""One shipper per folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shippers.lock import only_shipper
from writetime.errors import ShipError


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


def test_the_lock_goes_with_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="trouble"), only_shipper(tmp_path):
        raise ValueError("trouble")
    with only_shipper(tmp_path):
        pass


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ShipError, match=r"node\.cdc_raw"), only_shipper(tmp_path / "nowhere"):
        pytest.fail("locked a folder that is not there")
