"""Chains of batches: the current chain of a cluster, and the progress of the rebuild that began it.

Strategy: a pipeline begins with a chain without a name. `writetime rebuild` begins a new one over the
archive, whose first batch number is above all earlier ones, so numbers, and with them `source.sequence`,
never go back. Its document, `chains/<cluster>/<first>.json`, is created before its first batch; the last one
by name is the current one. Until it is finished, no other batches are planned. Manifests name their chain,
and so do the warehouse's snapshots. Does not know planning or Spark.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Final

from pydantic import Field

from writetime.errors import BatchBusy, BatchError, ConfigError, ObjectNotFound, PreconditionFailed
from writetime.pipeline.documents import Chain, Document, Manifest
from writetime.storage import layout
from writetime.storage.store import Store

_NAME: Final = re.compile(r"[0-9]{10,18}\.json")
_REBUILD: Final = "Run `writetime rebuild`: it rebuilds state and tables from the archive (docs/runbook.md)."


class Rebuild(Document):
    """A rebuild and its chain. `segments`: number of archived segments at its begin. `missing`: objects in
    the ledger that are missing in the archive or have different bytes (the first of them); `lacking`: their
    total number, including expired ones.

    `published`: last batch of earlier chains whose events are known to be sent; `sealed`: last sealed batch
    of these. `topics`: prefix under which all events are published again; `waiting`: tables that could not
    be published, and why."""

    chain: Chain
    begun_at: datetime
    segments: int
    missing: list[str] = Field(default=[])
    lacking: int = 0
    topics: str | None = None
    published: int | None = None
    sealed: int | None = None
    waiting: dict[str, str] = Field(default={})
    finished_at: datetime | None = None


def current(store: Store, cluster: str) -> Rebuild | None:
    """The last rebuild, finished or not; None if there is none."""
    last = None
    for info in store.names(layout.chains_prefix(cluster)):
        if _NAME.fullmatch(info.name.removeprefix(layout.chains_prefix(cluster))):
            last = info.name
    return None if last is None else Rebuild.read(store, last)


def unfinished(store: Store, cluster: str) -> Rebuild | None:
    """The unfinished rebuild, if there is one."""
    rebuild = current(store, cluster)
    return rebuild if rebuild is not None and rebuild.finished_at is None else None


def begin(store: Store, cluster: str, rebuild: Rebuild) -> Rebuild:
    """Create the document, or return the existing one if another driver was first."""
    return rebuild.create(store, layout.chain(cluster, rebuild.chain.first))


def go_partial(store: Store, cluster: str, rebuild: Rebuild, *, missing: list[str], lacking: int, kept_from: int | None) -> Rebuild:
    """Continue an unfinished rebuild without segments that are missing by now; the fields as in `Rebuild`
    and `Chain`."""
    chain = rebuild.chain.model_copy(update={"partial": True, "kept_from": kept_from})
    return _replace(store, cluster, rebuild, rebuild.model_copy(update={"chain": chain, "missing": missing, "lacking": lacking}))


def finish(store: Store, cluster: str, rebuild: Rebuild, upto: int, at: datetime, waiting: dict[str, str]) -> Rebuild:
    """Record that the rebuild is finished with batch `upto`. A second call changes nothing."""
    chain = rebuild.chain.model_copy(update={"upto": upto})
    return _replace(store, cluster, rebuild, rebuild.model_copy(update={"chain": chain, "finished_at": at, "waiting": waiting}))


def _replace(store: Store, cluster: str, rebuild: Rebuild, changed: Rebuild) -> Rebuild:
    name = layout.chain(cluster, rebuild.chain.first)
    info = store.head(name)
    there = None if info is None else Rebuild.model_validate_json(store.read(name, generation=info.generation))
    if info is None or there != rebuild:
        if there is not None and there.finished_at is not None:
            return there
        raise _changed(name)
    try:
        store.put(name, changed.to_bytes(), if_generation=info.generation)
    except PreconditionFailed as error:
        raise _changed(name) from error
    return changed


def _changed(name: str) -> BatchBusy:
    return BatchBusy("another driver has changed the rebuild", operation="rebuild", obj=name, hint="Run `writetime rebuild` again.")


def expect_same(rebuild: Rebuild, topics: str | None) -> None:
    """ConfigError if an unfinished rebuild was begun with another topic prefix."""
    if topics is not None and topics != rebuild.topics:
        begun = f"with `--topics {rebuild.topics}`" if rebuild.topics else "without `--topics`"
        hint = "Give the same options, or finish this rebuild before starting one with other options."
        raise ConfigError(f"the rebuild was begun {begun}", operation="rebuild", obj=f"--topics {topics}", hint=hint)


def continued(store: Store, cluster: str, before: Manifest | None) -> Chain | None:
    """The chain of the batch after `before`."""
    if before is None or before.chain is None or before.chain.upto is not None:
        return None if before is None else before.chain
    return before.chain.model_copy(update={"upto": _upto(store, before.chain, cluster, before.number)})


def _upto(store: Store, chain: Chain, cluster: str, number: int) -> int:
    """The last batch of the rebuild according to its document, else batch `number`. A late driver may have
    planned a batch after the rebuild was finished."""
    if chain.upto is not None:
        return chain.upto
    rebuild = current(store, cluster)
    upto = rebuild.chain.upto if rebuild is not None and rebuild.chain.id == chain.id else None
    return number if upto is None else upto


def begins_after(store: Store, cluster: str, number: int) -> int:
    """The batch up to which no event of the chain of batch `number` is published: the last one of its
    rebuild; 0 without a rebuild."""
    chain = _of_batch(store, cluster, number)
    return 0 if chain is None else _upto(store, chain, cluster, number)


def first_of(store: Store, cluster: str, number: int) -> int:
    """The number of the first batch in the chain of batch `number`."""
    chain = _of_batch(store, cluster, number)
    return 1 if chain is None else chain.first


def _of_batch(store: Store, cluster: str, number: int) -> Chain | None:
    manifest = Manifest.read(store, layout.batch_object(cluster, number, "manifest"))
    return None if manifest is None else manifest.chain


def has_past(store: Store, cluster: str) -> bool:
    """Whether batches of the cluster were archived or published."""
    if next(store.names(layout.ledger_of(cluster), page=1), None) is not None:
        return True
    try:
        note = json.loads(store.read(layout.published(cluster)))
    except (ObjectNotFound, ValueError):
        return False
    # A heartbeat may be recorded before the first batch.
    return isinstance(note, dict) and bool(note.get("batch"))


def text(rebuild: Rebuild) -> str:
    """The outcome of a finished rebuild as text."""
    chain = rebuild.chain
    lines = [f"rebuilt from {rebuild.segments} archived segments: batches {chain.first} to {chain.upto}"]
    if chain.partial:
        lines.append(f"incomplete: {rebuild.lacking} segments were missing; the tables carry `writetime.incomplete`")
    if rebuild.published is not None and (rebuild.sealed is None or rebuild.sealed > rebuild.published):
        last = "unknown" if rebuild.sealed is None else f"{rebuild.sealed}"
        lines.append(f"earlier events were published up to batch {rebuild.published}; the last sealed batch: {last}. Events in between")
        lines.append("are not sent: rebuild with `--topics PREFIX` if consumers need them")
    where = f"all events were published under {rebuild.topics}" if rebuild.topics else f"nothing up to batch {chain.upto} is published"
    lines.append(f"{where}; later events are sent by the next cdc_publish")
    lines += [f"not published: {name}: {why}" for name, why in sorted(rebuild.waiting.items())]
    return "\n".join(lines)


def under_way(rebuild: Rebuild, operation: str, cluster: str) -> BatchBusy:
    return BatchBusy(
        "a rebuild is under way",
        operation=operation,
        obj=layout.chain(cluster, rebuild.chain.first),
        hint="Run `writetime rebuild` to finish it; batches continue after that.",
    )


def missing(cluster: str, operation: str, why: str) -> BatchError:
    return BatchError(why, operation=operation, obj=layout.batches_prefix(cluster), hint=_REBUILD)
