"""What a pipeline cost, by day, stage and table: CPU seconds, bytes, objects, requests.

Strategy: seals carry sums from batch to batch (`Totals`), so a day is the difference of two seals: the last one of
the day and the last one before it. They are found by bisection over the numbers of batches, so a report reads some
dozens of seals, however many batches a day has. What a stage uses for all tables at once is divided among them by
the partition updates of the day. Sums restart with a rebuild; batches that were voided, and attempts that died, are
in none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from writetime.pipeline.batch_history import Batches
from writetime.pipeline.documents import Accounting, StageCost, Totals, costs_since, total
from writetime.pipeline.planner import effective, read_sealed

NOT_CAPTURED: Final = "not captured"
"""All tables of the system, and others that are not captured, as one."""


@dataclass(frozen=True, slots=True)
class TableCost:
    """A table on a day. `own`: what stages used for it alone; `shared`: its share of the CPU seconds of the others.
    `bytes`, `objects`: written for it to the warehouse."""

    table: str
    updates: int
    events: int
    own: float
    shared: float
    objects: int
    bytes: int

    @property
    def cpu_seconds(self) -> float:
        return self.own + self.shared


@dataclass(frozen=True, slots=True)
class DayCost:
    """A day, UTC. `stages`: the sums of each stage over all tables, the most expensive first; `costs`: by stage
    and table, as noted."""

    day: date
    batches: int
    costs: tuple[StageCost, ...]
    tables: tuple[TableCost, ...]

    @property
    def stages(self) -> list[StageCost]:
        found: dict[str, StageCost] = {}
        for cost in self.costs:
            plain = cost.model_copy(update={"table": ""})
            found[cost.stage] = found[cost.stage] + plain if cost.stage in found else plain
        return sorted(found.values(), key=lambda cost: (-cost.cpu_seconds, cost.stage))

    @property
    def all(self) -> StageCost:
        """The sum of all stages."""
        return sum((cost.model_copy(update={"table": "", "stage": "all"}) for cost in self.costs), StageCost(stage="all"))

    def to_document(self) -> dict[str, Any]:
        return {
            "day": self.day.isoformat(),
            "batches": self.batches,
            "stages": [cost.model_dump(exclude={"table"}) for cost in self.stages],
            "tables": [{**asdict(table), "cpu_seconds": round(table.cpu_seconds, 3)} for table in self.tables],
            "costs": [cost.model_dump() for cost in self.costs],
        }


def costs(batches: Batches, *, days: int, now: datetime | None = None) -> list[DayCost]:
    """The last days, today first; without days of which nothing is known."""
    today = (now or datetime.now(UTC)).astimezone(UTC).date()
    found = []
    for day in (today - timedelta(days=back) for back in range(days)):
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        before, after = _totals_at(batches, begin), _totals_at(batches, begin + timedelta(days=1))
        if (cost := _of_day(day, before or Totals(), after)) is not None:
            found.append(cost)
    return found


def _of_day(day: date, before: Totals, after: Totals | None) -> DayCost | None:
    """The difference of the sums before and after a day; None if no batch was sealed."""
    if after is None:
        return None
    made = sum(after.batches.values()) - sum(before.batches.values())
    if made < 0 or after.segments < before.segments:
        # A rebuild has begun new sums.
        before, made = Totals(), sum(after.batches.values())
    if not made:
        return None
    found = costs_since(after.costs, before.costs)
    accounts = {account.table: account for account in before.tables}
    updates = [_without(account, accounts.get(account.table)) for account in after.tables]
    return DayCost(day, made, tuple(found), tuple(_by_table(found, updates)))


def _without(account: Accounting, before: Accounting | None) -> Accounting:
    if before is None:
        return account
    return account.model_copy(
        update={name: getattr(account, name) - getattr(before, name) for name in Accounting.model_fields if name != "table"}
    )


def _by_table(found: Iterable[StageCost], updates: Iterable[Accounting]) -> list[TableCost]:
    """The tables with updates or costs of the day, the most expensive first."""
    found, counted = list(found), _folded(updates)
    read = sum(account.updates_in for account in counted.values())
    shared = sum(cost.cpu_seconds for cost in found if not cost.table)
    own: dict[str, StageCost] = {}
    for cost in (cost for cost in found if cost.table):
        plain = cost.model_copy(update={"stage": ""})
        own[cost.table] = own[cost.table] + plain if cost.table in own else plain
    made = []
    for name in counted.keys() | own.keys():
        account, mine = counted.get(name, Accounting(table=name)), own.get(name, StageCost(stage="", table=name))
        share = round(shared * account.updates_in / read, 3) if read else 0.0
        if account.updates_in or account.events or mine.cpu_seconds or mine.bytes:
            made.append(TableCost(name, account.updates_in, account.events, mine.cpu_seconds, share, mine.objects, mine.bytes))
    return sorted(made, key=lambda table: (-table.cpu_seconds, table.table))


def _folded(updates: Iterable[Accounting]) -> Mapping[str, Accounting]:
    """By table; those that only count as one."""
    updates = list(updates)
    others = [account for account in updates if account.is_not_ours]
    found = {account.table: account for account in updates if not account.is_not_ours}
    return found | ({NOT_CAPTURED: total(others)} if others else {})


def _totals_at(batches: Batches, at: datetime) -> Totals | None:
    """The sums of the last batch that was sealed before that time; None if there is none, or its seal is gone or
    has no sums."""
    newest = batches.newest()
    low, high, found = 0, newest.last - newest.open, None
    while low < high:
        middle = (low + high + 1) // 2
        seal = _seal(batches, middle)
        if seal is None or seal[0] < at:
            # Seals that are gone are the oldest ones.
            low, found = middle, seal or found
        else:
            high = middle - 1
    return None if found is None else found[1]


@lru_cache(maxsize=4096)
def _seal(batches: Batches, number: int) -> tuple[datetime, Totals | None] | None:
    """When a batch was sealed, and the sums up to it; None if its seal is gone."""
    sealed = read_sealed(batches.store, batches.cluster, number)
    if sealed is None:
        return None
    takes_effect = effective(batches.store, batches.cluster, sealed)
    return sealed.sealed_at, takes_effect.totals if takes_effect else None
