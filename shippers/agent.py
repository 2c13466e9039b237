"""The shipper's loop: look at cdc_raw, decide, act, sleep.

Strategy: a round is complete in itself and remembers nothing that the folder and the bucket do not say, so a shipper may be killed at
any point. Segments go oldest first; the schema goes before the segments that were seen completed before it was read. One segment's
trouble is reported and left for the next round, and holds up no other. A stop request is honoured between two files.

Knows the order of things; what a file is says `folder`, how one is shipped says `upload`, who the node is says `node`.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any

import structlog
import tenacity

from shippers import node, upload
from shippers.folder import Found, State, classify, look
from shippers.lock import only_shipper
from writetime import names
from writetime.config import PipelineConfig
from writetime.errors import ConfigError, PreconditionFailed, ShipError, StoreError, WritetimeError
from writetime.names import SegmentRef
from writetime.store import Store

_ATTEMPTS = 5
_LONGEST_PAUSE = 30.0


@dataclass(slots=True)
class Round:
    """What one look at the folder came to."""

    shipped: Counter[upload.Outcome] = field(default_factory=Counter)
    failed: list[WritetimeError] = field(default_factory=list)
    waiting: int = 0
    foreign: int = 0

    @property
    def ok(self) -> bool:
        return not self.failed


class Agent:
    """A shipper for one cdc_raw folder. `link` is None when nothing is asked of the node; `pause` seeds the back-off, in seconds."""

    def __init__(self, config: PipelineConfig, store: Store, *, link: node.Link | None, stop: Event, pause: float = 0.5) -> None:
        self._config = config
        self._node = node.require_node(config)
        self._store = store
        self._link = link
        self._stop = stop
        self._pause = pause
        self._log = structlog.get_logger("ship").bind(folder=str(self._node.cdc_raw), store=store.url)
        self._facts: node.NodeFacts | None = None
        self._published: node.NodeFacts | None = None
        self._schema_version: str | None = None
        self._reported: set[str] = set()

    def run(self, *, once: bool) -> bool:
        """Ship until stopped, or one round. Whether the last round shipped all it could. ShipError if another shipper is here."""
        with only_shipper(self._node.cdc_raw):
            while True:
                done = self._survive_round(once)
                if once or self._stop.wait(self._node.poll_seconds):
                    return done

    def round(self) -> Round:
        """One look at the folder. Raises only what concerns the folder or the node as a whole."""
        found = classify(look(self._node.cdc_raw))
        facts = self._identify()
        result = Round(
            waiting=sum(f.state in (State.PREALLOCATED, State.GROWING) for f in found),
            foreign=sum(f.state is State.FOREIGN for f in found),
        )
        self._report_foreign(found)
        self._publish(facts)
        self._ship_schema(facts)
        for item in found:
            if self._stop.is_set():
                break
            if item.state is State.LEFTOVER_IDX:
                self._remove_leftover(item)
            if item.state is State.COMPLETED:
                self._ship_segment(facts, item, result)
        return result

    def _survive_round(self, once: bool) -> bool:
        """A round whose trouble ends the run only if it is the only one, or if no later one can do better."""
        try:
            result = self.round()
        except ConfigError:
            raise
        except WritetimeError as error:
            if once:
                raise
            self._log.error("round failed", **error.as_dict())
            return False
        if once or result.shipped or result.failed:
            counts = {outcome.name.lower(): count for outcome, count in result.shipped.items()}
            self._log.info("round", **counts, failed=len(result.failed), waiting=result.waiting, foreign=result.foreign)
        return result.ok

    def _identify(self) -> node.NodeFacts:
        """Who the node is. Asked until it has answered once; until then the configuration and older notes have to do."""
        if self._facts is not None:
            return self._facts
        notes, told = node.notes_file(self._node), {}
        if self._link is not None:
            try:
                told = self._link.facts()
            except ShipError as error:
                self._log.warning("the node did not say who it is", **error.as_dict())
        facts = node.merge(self._config, told, node.recall(notes))
        if told:
            node.remember(notes, facts)
        if told or self._link is None:
            self._facts = facts
        return facts

    def _publish(self, facts: node.NodeFacts) -> None:
        if facts == self._published:
            return
        try:
            if node.publish(self._store, facts):
                self._log.info("node facts written", host_id=facts.host_id)
            self._published = facts
        except StoreError as error:
            # Segments carry the facts that matter in their own metadata; a bucket that lets nodes only create refuses the update.
            self._log.warning("node facts not written", **error.as_dict())

    def _ship_schema(self, facts: node.NodeFacts) -> None:
        """Ship the schema if its version is new to this run; a schema that cannot be had holds up no segment."""
        try:
            if (snapshot := self._new_snapshot()) is not None:
                self._put_schema(facts, snapshot)
        except ConfigError:
            raise
        except WritetimeError as error:
            self._log.warning("schema not shipped", **error.as_dict())

    def _new_snapshot(self) -> dict[str, Any] | None:
        """The node's schema if it has changed; while the node does not answer, the file of the configuration, once."""
        if self._link is not None:
            try:
                return self._link.snapshot() if self._link.schema_version() != self._schema_version else None
            except ShipError as error:
                self._log.warning("the node did not tell its schema", **error.as_dict())
        if self._schema_version is None and self._node.schema_file is not None:
            return _read_snapshot(self._node.schema_file)
        return None

    def _put_schema(self, facts: node.NodeFacts, snapshot: dict[str, Any]) -> None:
        version = snapshot["schema_version"]
        if not self._is_shipped(facts, version):
            name = names.schema_snapshot(facts.cluster, datetime.fromisoformat(snapshot["taken_at"]), version)
            try:
                self._store.put(name, json.dumps(snapshot, indent=1).encode() + b"\n", if_generation=0)
                self._log.info("schema shipped", object=name)
            except PreconditionFailed:
                # Another node of the ring was as fast: same second, same version, same schema.
                self._log.info("schema already there", object=name)
        self._schema_version = version

    def _is_shipped(self, facts: node.NodeFacts, version: str) -> bool:
        """Whether some node of the ring has shipped that version: it is a digest of the schema, so one copy is enough."""
        ending = f"-{names.part(version)}.json"
        return any(info.name.endswith(ending) for info in self._store.list(names.schema_prefix(facts.cluster)))

    def _ship_segment(self, facts: node.NodeFacts, item: Found, result: Round) -> None:
        assert item.segment is not None
        ref = SegmentRef(facts.name, item.segment)
        log = self._log.bind(segment=item.name)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(lambda error: isinstance(error, WritetimeError) and error.retriable),
            stop=tenacity.stop_any(tenacity.stop_after_attempt(_ATTEMPTS), tenacity.stop_when_event_set(self._stop)),
            wait=tenacity.wait_random_exponential(multiplier=self._pause, max=_LONGEST_PAUSE),
            sleep=tenacity.sleep_using_event(self._stop),
            before_sleep=lambda state: log.warning(
                "again", attempt=state.attempt_number, error=str(state.outcome and state.outcome.exception())
            ),
            reraise=True,
        )
        try:
            outcome = retrying(upload.ship, self._store, ref, self._node.cdc_raw, facts.metadata())
        except WritetimeError as error:
            log.error("not shipped", **error.as_dict())
            result.failed.append(error)
        else:
            log.info(outcome.value, object=ref.incoming)
            result.shipped[outcome] += 1

    def _remove_leftover(self, item: Found) -> None:
        """Finish a deletion. The log is looked for once more: a folder that is written to is not listed in one moment."""
        assert item.segment is not None
        if not (self._node.cdc_raw / item.segment.filename).exists():
            upload.remove(self._node.cdc_raw / item.name)

    def _report_foreign(self, found: list[Found]) -> None:
        for item in found:
            if item.state is State.FOREIGN and item.name not in self._reported:
                self._reported.add(item.name)
                self._log.warning("not a segment, left alone", file=item.name, reason=item.reason)


def _read_snapshot(path: Path) -> dict[str, Any]:
    """The schema file of the configuration. ConfigError if it is no snapshot."""
    try:
        snapshot = json.loads(path.read_bytes())
        datetime.fromisoformat(snapshot["taken_at"])
        if not isinstance(snapshot["schema_version"], str):
            raise TypeError("schema_version is no text")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", operation="read node.schema_file", obj=str(path)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"is no schema snapshot: {error!r}", operation="read node.schema_file", obj=str(path)) from error
    return dict(snapshot)
