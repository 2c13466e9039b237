"""State that releases up to 0.2 wrote elsewhere: `bring`.

Strategy: Lance decodes URLs, and was not given escaped ones. So in a bucket, the state of a cluster whose name is
escaped in names of objects (`Test%20Cluster`) lay below its plain name, where no listing looked: maintenance and
erasures removed nothing of it. Each job that reads state moves it first: copies all, then deletes, so that a job that
dies leaves it for the next one, and several may move at once. A dataset may be moved, as it names its files relative
to itself. May be left out once no such release writes any more; each call is one request then.

Not moved is what may be another cluster's: with `%` in the name or the prefix, the former place is the right one of
another name. Such state has to be built again (docs/names.md)."""

from __future__ import annotations

from contextlib import suppress

import structlog

from writetime.config.pipeline import PipelineConfig
from writetime.errors import ObjectNotFound, PreconditionFailed
from writetime.storage import address, layout, open_store
from writetime.storage.concurrency import at_once
from writetime.storage.object_names import is_name
from writetime.storage.store import discard_at_once

log = structlog.get_logger()


def bring(config: PipelineConfig) -> int:
    """Move the cluster's state to where it is looked for; returns how many objects were moved."""
    url, cluster = config.state or config.bucket, config.cluster.name
    place, former, wanted = address.parse(url), f"state/{cluster}/", layout.states_prefix(cluster)
    if place.scheme == "file" or former == wanted or "%" in cluster + place.path or not is_name(former.removesuffix("/")):
        return 0
    store = open_store(url)
    names = [each.name for each in store.names(former)]

    def copy(name: str) -> None:
        # Another job may have copied, and then deleted it.
        with suppress(PreconditionFailed, ObjectNotFound):
            store.copy(name, wanted + name.removeprefix(former), if_generation=0)

    at_once(copy, names)
    discard_at_once(store, names)
    if names:
        log.info("state moved to its place", cluster=cluster, objects=len(names), former=former)
    return len(names)
