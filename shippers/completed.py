"""How completed segments are shipped, one at a time: rate limit, retries, log and metrics.

Strategy: an error that may be gone later is retried a few times, with growing pauses; if the store did not
answer for the segment before, there is one attempt only. A segment that was tried before, by this run or an earlier
one (`tried`), is looked for in the store before it is sent again. All bytes that are sent count for the rate limit, which is
lifted while space is short. While the store is down, segments are spilled during the pauses.

Knows nothing about the order of segments. `upload` ships one, once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import tenacity

from shippers import upload
from shippers.disk_space import Level, Pace
from shippers.folder import Found, State
from shippers.metrics import Metrics, Pulse
from shippers.node_identity import NodeFacts
from shippers.relief import Relief
from shippers.scan import Scanner
from shippers.tried import Tried
from writetime.errors import ShipError, WritetimeError
from writetime.storage import sent_bytes
from writetime.storage.layout import SegmentName, SegmentRef
from writetime.storage.store import Store

_ATTEMPTS = 5
_LONGEST_PAUSE = 30.0
_AFTER_CRASH = "after-crash"
_REPORT = "The file is kept and retried. If the error persists, report it with the log's traceback."


class CompletedSegments:
    """Ships completed segments to one store. `state` is the shipper's state folder, `pause` is the base of the back-off in seconds."""

    def __init__(
        self,
        store: Store,
        state: Path,
        scanner: Scanner,
        relief: Relief,
        pace: Pace,
        stop: Event,
        pause: float,
        metrics: Metrics,
        pulse: Pulse,
        log: Any,
    ) -> None:
        self._store = store
        self._scanner = scanner
        self._relief = relief
        self._pace = pace
        self._stop = stop
        self._pause = pause
        self._metrics = metrics
        self._pulse = pulse
        self._log = log
        self._measured = upload.Measured()
        self._tried = Tried(state, store.url)
        self.youngest: tuple[SegmentName, float] | None = None
        """The youngest segment shipped by this run, and the last write to it in s since the epoch."""

    def ship(self, facts: NodeFacts, folder: Path, item: Found, *, retry: bool) -> upload.Outcome | WritetimeError:
        """Ship one segment of the node and delete it from `folder`. Returns the error if that fails."""
        assert item.segment is not None
        ref = SegmentRef(facts.name, item.segment)
        log = self._log.bind(segment=item.name)
        result: upload.Outcome | WritetimeError
        about = facts.metadata() | _about(item)
        self._pace.wait(self._in_a_hurry)
        begun = time.monotonic()
        try:
            result = self._retrying(log, retry)(self._attempt, ref, folder, about)
        except WritetimeError as error:
            log.error("failed to ship a segment", **error.as_dict())
            self._relief.store_is_down = upload.is_unanswered(error)
            self._metrics.failed(type(error).__name__)
            result = error
        except Exception as error:
            # Whatever is wrong with one segment, it delays no other.
            log.exception("failed to ship a segment unexpectedly", error=type(error).__name__, message=str(error))
            self._metrics.failed(type(error).__name__)
            result = unexpected(error, "ship a segment", folder / item.name)
        else:
            if result is upload.Outcome.IN_CONFLICT:
                hint = "Both are kept, and no batch reads either: see `writetime conflicts list`."
                log.error("segment in conflict: the store holds other bytes under its name", object=ref.incoming, hint=hint)
            else:
                log.info(result.value, object=ref.incoming, **({"ending": _AFTER_CRASH} if _crashed(item) else {}))
            self._relief.store_is_down = False
            if item.dated:
                self.youngest = max(self.youngest or (item.segment, item.mtime), (item.segment, item.mtime))
            self._metrics.shipped(result.value, item.size, time.monotonic() - begun)
        self._pulse.beat()
        return result

    def _attempt(self, ref: SegmentRef, folder: Path, about: Mapping[str, str]) -> upload.Outcome:
        self._pace.wait(self._in_a_hurry)
        before = sent_bytes.sent()
        try:
            outcome = upload.ship(self._store, ref, folder, about, self._measured, look_first=ref.segment in self._tried)
        except Exception:
            self._tried.add(ref.segment)
            raise
        finally:
            self._pace.spent(sent_bytes.sent() - before)
        self._tried.discard(ref.segment)
        return outcome

    def _in_a_hurry(self) -> bool:
        """Whether the rate limit is lifted. Called every second while it delays the loop; also reports that
        it is alive.
        """
        self._pulse.beat()
        return self._scanner.level is not Level.OK or self._scanner.scan().level is not Level.OK

    def _retrying(self, log: Any, retry: bool) -> tenacity.Retrying:
        """Retry retriable errors, or make a single attempt."""

        def before_sleep(state: tenacity.RetryCallState) -> None:
            error = state.outcome and state.outcome.exception()
            log.warning("upload failed, retrying", attempt=state.attempt_number, error=str(error))
            self._pulse.beat()
            self._relief.store_is_down = upload.is_unanswered(error)
            if self._relief.store_is_down:
                self._relief.make_room()

        return tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, WritetimeError) and error.retriable),
            stop=tenacity.stop_any(tenacity.stop_after_attempt(_ATTEMPTS if retry else 1), tenacity.stop_when_event_set(self._stop)),
            wait=tenacity.wait_random_exponential(multiplier=self._pause, max=_LONGEST_PAUSE),
            sleep=tenacity.sleep_using_event(self._stop),
            before_sleep=before_sleep,
            reraise=True,
        )


def unexpected(error: Exception, operation: str, path: Path) -> ShipError:
    """A defect, or an answer that nobody foresaw, as an error of the file with which it came up."""
    return ShipError(f"{type(error).__name__}: {error}", operation=operation, obj=str(path), hint=_REPORT)


def _crashed(item: Found) -> bool:
    return item.state is State.AFTER_CRASH or item.replayed


def _about(item: Found) -> dict[str, str]:
    """Object metadata on how the segment ended. After a crash, an incomplete last section is not
    corruption."""
    about = {"ending": _AFTER_CRASH if _crashed(item) else "completed"}
    return about if item.synced is None else about | {"synced": str(item.synced)}
