"""How many events of each batch the changes tables have to hold, by the seals: compared before a sink has them.

A hole is the table's: it waits, and the error names what brings it back. Where a table was made again
(`writetime.pipeline.again`), its events tell all of it, and what is before does not count. Must not know a sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from writetime.errors import PublishError
from writetime.pipeline import again, erasures
from writetime.pipeline.documents import Sealed
from writetime.storage.store import Store

Promised = Mapping[int, Counter[str] | None]
"""By batch, the number of events of each table, by full name; None: the seal is gone."""


def promised_by(sealed: Sealed | None) -> Counter[str] | None:
    """What a seal says."""
    if sealed is None:
        return None
    found: Counter[str] = Counter()
    for account in sealed.accounting:
        # The label of a dropped incarnation is its name and its id (`Table.label`).
        found[account.table.partition("@")[0]] += account.events
    return found


def hole(store: Store, cluster: str, table: str, there: Mapping[int, int], promised: Promised) -> PublishError | None:
    """The error if the number of events that are `there` of one of these batches is not the promised one."""
    seals = ((number, events[table]) for number, events in promised.items() if events is not None)
    wrong = {number: (there.get(number, 0), events) for number, events in seals if there.get(number, 0) != events}
    if wrong:
        # Of a key that was erased since, no event is left.
        erased = [each.number for each in erasures.listed(store, cluster) if each.table == table and not each.revoked]
        wrong = {number: each for number, each in wrong.items() if number > max(erased, default=0) or each[0] > each[1]}
    if not wrong:
        return None
    first, (found, sealed) = min(wrong.items())
    others = f", and {len(wrong) - 1} more batches differ" if len(wrong) > 1 else ""
    return lacking(
        table,
        f"its changes table has {found} events of batch {first}, and the seal says {sealed}{others}: rows were deleted, or it was rolled "
        "back or put back from a backup",
    )


def lacking(table: str, message: str) -> PublishError:
    """A table that has lost something."""
    return PublishError(
        message,
        operation="publish events",
        obj=table,
        hint=f"Put back what is lost, or run `{again.command(table)}`: the next batch makes the table again from its state and tells all "
        "its rows. Other tables go on.",
    )
