"""Tables that are made again: what their state holds, instead of what the warehouse or the topics have lost.

Strategy: seals say what the warehouse has to hold, and a table that does not is left out of batches and publishing
(`spark_jobs.sinks.iceberg`, `spark_jobs.publish`). A person then asks for it (`writetime again`): the request is an object
for each table, in which `since` is the last batch that was begun by then. The next batch that is planned shows all rows of
the table anew: its current rows are replaced, and by default its events begin with one that removes all rows, and tell each
row as it is. Publishing takes up the table there. The seals note what was done, so a request is never taken back and needs
no answer. Other tables are in the same batch as always. Does not know Spark or planning."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from writetime.cassandra.schema.model import Table
from writetime.pipeline.documents import Document, MadeAgain, Sealed, TablePoints
from writetime.storage import layout
from writetime.storage.concurrency import at_once
from writetime.storage.store import Store


def command(table: str, *, with_events: bool = True) -> str:
    """What makes a table again, for a shell; `with_events`: with events of all its rows."""
    return f"writetime again {shlex.quote(table)}" + ("" if with_events else " --rows")


class Request(Document):
    """Somebody wants a table to be made again by a batch after `since`. `with_events`: with events of all its rows."""

    table: str
    table_id: UUID
    since: int
    with_events: bool
    by: str
    at: datetime

    def is_done(self, made: MadeAgain | None) -> bool:
        return made is not None and (made.with_events if self.with_events else made.batch) > self.since


def ask(
    store: Store, cluster: str, tables: Sequence[Table], *, since: int, sealed: Sealed | None, with_events: bool, by: str, now: datetime
) -> list[Request]:
    """Record the requests. `since`: the last batch that was begun, or planned; `sealed`: the last seal."""
    found = []
    for table in tables:
        new = Request(table=table.full_name, table_id=table.id, since=since, with_events=with_events, by=by, at=now)

        def change(before: Request | None, new: Request = new) -> Request:
            waits = before is not None and not before.is_done(_made(sealed, new.table_id))
            return new.model_copy(update={"with_events": True}) if waits and before is not None and before.with_events else new

        found.append(Request.update(store, layout.made_again(cluster, str(table.id)), change) or new)
    return found


def due(store: Store, cluster: str, sealed: Sealed | None, first: int) -> dict[UUID, bool]:
    """By id, the tables with a state that the next batch makes again, and whether with events. `first`: the first batch of
    the chain, which has made all tables again."""
    if sealed is None:
        return {}
    names = [info.name for info in store.names(layout.made_again_prefix(cluster))]
    requests = [each for each in at_once(lambda name: Request.read(store, name), names) if each is not None]
    return {
        each.table_id: each.with_events
        for each in requests
        if each.since >= first - 1 and _has_state(sealed, each.table_id) and not each.is_done(_made(sealed, each.table_id))
    }


def expected(base: Sealed | None, made: Mapping[UUID, bool]) -> dict[UUID, TablePoints]:
    """Where the tables of the warehouse have to stand before a batch that makes these tables again."""
    found = dict(base.points) if base is not None else {}
    for table_id, with_events in made.items():
        before = found.pop(table_id, None)
        if before is not None and not with_events:
            found[table_id] = TablePoints(changes=before.changes)
    return found


def after(base: Sealed | None, made: Mapping[UUID, bool], number: int) -> dict[UUID, MadeAgain]:
    """What the seal of batch `number` notes, which has made these tables again."""
    known = dict(base.again) if base is not None else {}
    for table_id, with_events in made.items():
        before = known.get(table_id)
        known[table_id] = MadeAgain(batch=number, with_events=number if with_events else before.with_events if before is not None else 0)
    return known


def begins(sealed: Sealed | None) -> dict[UUID, int]:
    """By table id, the last batch whose events tell all rows of the table."""
    return {} if sealed is None else {table_id: made.with_events for table_id, made in sealed.again.items() if made.with_events}


def _made(sealed: Sealed | None, table_id: UUID) -> MadeAgain | None:
    return None if sealed is None else sealed.again.get(table_id)


def _has_state(sealed: Sealed, table_id: UUID) -> bool:
    versions = sealed.state.get(str(table_id))
    return versions is not None and not versions.ended
