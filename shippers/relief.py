"""When segments are spilled: relief for the node's space while the store is unavailable.

Strategy: the node keeps writing while the loop waits for the store, so a second thread spills too, if
configured. It does once an upload failed or has not returned for a while, and the space level is ALARM. The
segment that is being uploaded is claimed and stays where it is; one that was spilled cannot be claimed in the
same round, because its file is gone. Files are moved, and a leftover idx deleted, under one lock.

Knows nothing about the store: `completed` says whether it is down. `spill` moves the files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from shippers import disk_space, spill, upload
from shippers.folder import Found
from shippers.metrics import Metrics, Pulse
from shippers.scan import Scanner, View
from writetime.config.node import NodeConfig
from writetime.errors import ShipError, WritetimeError

_EVERY_SECONDS = 0.5
_HANGS = 5.0
"""Seconds after which an upload that has not returned counts as an unavailable store, if space is short."""


class Relief:
    """Spills segments of one node, and keeps both threads from using the same file."""

    def __init__(self, node: NodeConfig, scanner: Scanner, metrics: Metrics, pulse: Pulse, log: Any) -> None:
        self._node = node
        self._scanner = scanner
        self._metrics = metrics
        self._pulse = pulse
        self._log = log
        self._spills = node.ship.when_store_is_down == "spill"
        self._moving = Lock()
        self._claimed: tuple[str, float] | None = None
        self._spilled: set[str] = set()
        self.store_is_down = False
        """Whether the store did not answer, or denied access, when a segment was shipped last."""

    @contextmanager
    def prepared(self, *, in_background: bool) -> Iterator[None]:
        """Prepare the spill folder, if configured. Spill `in_background` while the block runs."""
        if not self._spills:
            yield
            return
        error = spill.trouble(self._node.spill, self._node.cdc_raw)
        self._metrics.can_spill(error is None)
        if error is not None:
            # Completed segments are still shipped.
            self._log.error("spill folder is unusable", **error.as_dict())
        else:
            self._note_folder()
        over = Event()
        if in_background:
            Thread(target=self._watch, args=(over,), name="relief", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def begin_round(self) -> None:
        """Segments that were spilled before are found by the next scan."""
        with self._moving:
            self._spilled.clear()

    def claim(self, item: Found) -> bool:
        """Claim a segment for upload so that it is not spilled. False if it already was."""
        with self._moving:
            if item.name in self._spilled:
                return False
            self._claimed = item.name, time.monotonic()
            return True

    def release(self) -> None:
        """Give up the claim: the upload returned."""
        self._claimed = None

    def make_room(self) -> None:
        """Spill completed segments other than the claimed one, if configured and the space level is ALARM."""
        if not self._spills:
            return
        with self._moving:
            claimed, view = self._claimed[0] if self._claimed is not None else "", self._scanner.scan()
            if not view.space.may_spill(self._node.ship):
                return
            candidates = (item for item in view.here if item.name != claimed and self._scanner.confirms(self._node.cdc_raw, item))
            try:
                if (error := spill.trouble(self._node.spill, self._node.cdc_raw)) is not None:
                    raise error
                spill.note_place(self._node.state, self._node.spill)
                for moved in spill.put_aside(self._node.cdc_raw, self._node.spill, candidates, lambda moved: self._helps(view, moved)):
                    self._spilled.add(moved.name)
                    self._metrics.put_aside()
                    self._log.warning("segment spilled", segment=moved.name, spill=str(self._node.spill))
            except WritetimeError as error:
                self._log.error("failed to spill a segment", **error.as_dict())

    def finish_moves(self, view: View) -> bool:
        """Move the idx of each spilled log whose spill was interrupted: it says how the segment ended.
        Whether any was.
        """
        moved = False
        for item in view.here:
            try:
                with self._moving:
                    if (aside := spill.owner(view.spills, item)) is not None:
                        spill.follow(self._node.cdc_raw, aside, item)
                        moved = True
            except ShipError as error:
                self._log.error("failed to spill a segment", **error.as_dict())
        return moved

    def remove_leftover(self, folder: Path, item: Found) -> None:
        """Delete an idx without a log, unless the log was spilled. ShipError if that fails.

        The log is checked once more: a listing of a changing folder is not atomic.
        """
        assert item.segment is not None
        with self._moving:
            spills, _ = spill.places(self._node.state, self._node.spill)
            owed = folder == self._node.cdc_raw and spill.owner(spills, item) is not None
            if not owed and not upload.is_there(folder / item.segment.filename):
                upload.remove(folder / item.name)

    def _watch(self, over: Event) -> None:
        """In a second thread: spill segments while an unavailable store blocks the loop in a pause or a
        hanging call.
        """
        while not over.wait(_EVERY_SECONDS):
            claimed = self._claimed
            hangs = claimed is not None and time.monotonic() > claimed[1] + _HANGS
            if self.store_is_down or hangs:
                try:
                    self.make_room()
                except WritetimeError as error:
                    self._log.error("failed to spill segments", **error.as_dict())
                except Exception as error:  # noqa: BLE001
                    # The thread must survive: nothing else frees space while the store is unavailable.
                    self._log.exception("failed to spill segments", error=type(error).__name__, message=str(error))

    def _note_folder(self) -> None:
        """Record the spill folder while the disk still has space: nothing is spilled without that record."""
        try:
            spill.note_place(self._node.state, self._node.spill)
        except (ShipError, OSError) as error:
            about = error.as_dict() if isinstance(error, ShipError) else {"message": str(error)}
            self._log.error("failed to record the spill folder", **about)

    def _helps(self, view: View, moved: int) -> bool:
        """Whether spilling still helps after `moved` bytes. It does not if the disk itself is full.

        Computed from the last scan and the disk's free space: listing thousands of files per segment is too
        slow.
        """
        self._pulse.beat()
        space = disk_space.measure(self._node.cdc_raw, (), view.space.limit)
        return replace(view.space, used=view.space.used - moved, free=space.free).may_spill(self._node.ship)
