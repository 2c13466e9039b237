"""One shipper a folder: an flock on the cdc_raw folder itself.

The folder and not a file beside it, so that two shippers with different settings still meet. The kernel lets go when the process
ends, however it ends. Knows nothing of what is shipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from writetime.errors import ShipError


@contextlib.contextmanager
def only_shipper(folder: Path) -> Iterator[None]:
    """Hold the folder while the block runs. ShipError at once if another shipper has it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ShipError(
            f"cannot be opened: {error.strerror}", operation="lock cdc_raw", obj=str(folder), hint="Check node.cdc_raw and its mode."
        ) from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ShipError(
            "another shipper is at work on this folder", operation="lock cdc_raw", obj=str(folder), hint="Stop one of the two."
        ) from error
