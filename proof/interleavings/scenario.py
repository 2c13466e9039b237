"""Which drivers run beside each other, and what has to hold when all have ended and are let alone.

Strategy: most scenarios begin with batches that are ingested and published. Their drivers run as a schedule says. Then whoever
is on call does what the docs say, without deviations: an unfinished rebuild goes on, a request that was interrupted is
made again, batches and publishing run until they are idle. After that, tables, state, topics and archive hold each
mutation once, whatever happened before; and no driver has ended with anything but an honest error."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from proof.interleavings import drivers
from proof.interleavings.jobs import CLUSTER, PREFIX, Here, Mutation, Place, mutations_of
from proof.interleavings.schedule import Deviations
from proof.interleavings.world import Driver, Endless, Schedule, World
from writetime.errors import ChainMismatch, WritetimeError
from writetime.pipeline import chains
from writetime.pipeline.documents import LedgerEntry, Sealed
from writetime.pipeline.planner import history, read_sealed
from writetime.pipeline.publish_progress import read_published
from writetime.storage import layout, segment_object

BESIDE: Final = "check"
"""The shadow namespace of replays."""
AGAIN: Final = "t2"
"""The prefix of topics that a rebuild fills."""
ORDERS: Final = "shop.orders"
USERS: Final = "shop.users"
Work = Callable[[Place], Any]


def put(key: str, at: int, value: str | None, table: str = ORDERS) -> Mutation:
    return Mutation(table, key, at, value)


BEFORE: Final = [[put("a", 1, "a1"), put("b", 1, "b1"), put("u", 1, "u1", USERS)], [put("a", 2, "a2"), put("c", 2, "c2")]]
"""Segments that are ingested and published, a batch each, before the drivers begin."""
NEWS: Final = [
    [put("a", 3, "a3"), put("b", 3, None), put("d", 3, "d3")],
    [put("u", 4, "u4", USERS), put("a", 4, "a4"), put("c", 1, "c1")],
    [put("e", 5, "e5"), put("v", 5, "v5", USERS)],
]
"""Segments that come in meanwhile."""
FIRST_NEWS: Final = len(BEFORE) + 1
"""The number of the first of the news."""
SHIPPER: Final = "shipper", partial(drivers.ship, segments=NEWS[1:])
"""Who ships the rest of the news."""
OF_ERASED: Final = [[*NEWS[0], put("c", 3, None)], [put("b", 1, "b1"), put("f", 4, "f4")], *NEWS[1:]]
"""After the DELETE of b and c, other replicas' copies of their INSERT."""


@dataclass(frozen=True)
class Scenario:
    """`rivals`: drivers by name, in the order in which they begin. `before`: segments that are ingested and published, a batch each,
    before the drivers begin, after a batch that is `voided`; `began`: what runs then; `there`: how many of the `news` have come in
    before, `known` of them are ingested and published; `afterwards`: what is asked for again when it was interrupted, by the name of
    its driver. `rebuilds`, `sends_again`: what of the rules does not hold then; `erases`: the keys of ORDERS that are erased in the end;
    `beside`: all that is archived is replayed into a shadow namespace in the end; `lost`: the record of publishing, or that of Kafka,
    was lost, after which everything is looked at from the beginning, and events may be sent again; `packs`: segments are packed;
    `restores`: the bucket is put back from a backup, so that a rebuild may be what an error says; `decides`: somebody else has put
    other bytes under the name of the first of the `news`; `damaged`: that one is damaged, until somebody repairs or releases it;
    `topics`: a rebuild publishes under the prefix AGAIN; `rejects`: batches reject a table, whose segments are read again later."""

    name: str
    rivals: Sequence[tuple[str, Work]]
    there: int = 1
    known: int = 0
    before: Sequence[Sequence[Mutation]] = tuple(BEFORE)
    voided: bool = False
    began: Sequence[Work] = ()
    news: Sequence[Sequence[Mutation]] = tuple(NEWS)
    afterwards: Sequence[str] = ()
    rebuilds: bool = False
    sends_again: bool = False
    erases: Sequence[str] = ()
    beside: bool = False
    lost: bool = False
    packs: bool = False
    restores: bool = False
    decides: bool = False
    damaged: bool = False
    topics: bool = False
    rejects: bool = False


ALL: Final = {
    each.name: each
    for each in (
        Scenario("two-ingests", [("ingest 1", drivers.ingest_run), ("ingest 2", drivers.ingest_run)]),
        Scenario(
            "two-publishers", [("ingest", drivers.ingest_run), ("publish 1", drivers.publish_run), ("publish 2", drivers.publish_run)]
        ),
        Scenario(
            "ingest-publish",
            [
                ("ingest", drivers.ingest_until_idle),
                ("publish", drivers.publish_run),
                SHIPPER,
            ],
        ),
        Scenario(
            "session-publish",
            [("session", drivers.session), ("publish", drivers.publish_run), SHIPPER],
        ),
        Scenario("two-sessions", [("session 1", drivers.session), ("session 2", drivers.session)]),
        Scenario(
            "session-again",
            [("session", drivers.session), ("again", drivers.again), SHIPPER],
            afterwards=["again"],
            sends_again=True,
        ),
        Scenario(
            "session-rebuild",
            [("session", drivers.session), ("rebuild", drivers.rebuild_run), SHIPPER],
            rebuilds=True,
        ),
        Scenario(
            "two-rebuilds",
            [("rebuild 1", drivers.rebuild_run), ("rebuild 2", drivers.rebuild_run)],
            rebuilds=True,
        ),
        Scenario(
            "rebuild-again",
            [
                ("rebuild 1", drivers.rebuild_once),
                ("rebuild 2", drivers.rebuild_twice),
                SHIPPER,
            ],
            rebuilds=True,
        ),
        Scenario(
            "again-rebuild",
            [("again", drivers.again), ("rebuild", drivers.rebuild_run), ("publish", drivers.publish_run)],
            afterwards=["again"],
            rebuilds=True,
            sends_again=True,
        ),
        Scenario(
            "rebuild-topics",
            [
                ("rebuild 1", partial(drivers.rebuild_run, topics=AGAIN)),
                ("rebuild 2", partial(drivers.rebuild_run, topics=AGAIN)),
                ("publish", drivers.publish_run),
            ],
            rebuilds=True,
            topics=True,
        ),
        Scenario(
            "rebuild-publish",
            [("ingest", drivers.ingest_run), ("rebuild", drivers.rebuild_run), ("publish", drivers.publish_run)],
            rebuilds=True,
        ),
        Scenario("void", [("ingest", drivers.ingest_run), ("void", drivers.void_open), ("publish", drivers.publish_run)]),
        Scenario(
            "first-batch",
            [("ingest 1", drivers.ingest_run), ("void", drivers.void_open), ("session", drivers.session), ("publish", drivers.publish_run)],
            there=2,
            before=(),
            news=(*BEFORE, *NEWS[:1]),
        ),
        Scenario(
            "rebuilt-maintenance",
            [("ingest", drivers.ingest_until_idle), ("maintenance", drivers.maintenance), ("void", drivers.void_open)],
            rebuilds=True,
            began=[drivers.rebuild_run],
        ),
        Scenario(
            "rebuilt-erase",
            [("ingest", drivers.ingest_until_idle), ("void", drivers.void_open), ("erase", partial(drivers.erase_run, key="b"))],
            there=2,
            known=1,
            news=OF_ERASED,
            rebuilds=True,
            erases=["b"],
            began=[drivers.rebuild_run, drivers.publish_run],
        ),
        Scenario(
            "first-again",
            [("session", drivers.session), ("again", drivers.again), ("publish", drivers.publish_run)],
            there=2,
            before=(),
            news=(*BEFORE, *NEWS[:1]),
            afterwards=["again"],
            sends_again=True,
        ),
        Scenario(
            "first-voided",
            [("again", drivers.again), ("rebuild", drivers.rebuild_run), ("publish", drivers.publish_run)],
            afterwards=["again"],
            rebuilds=True,
            sends_again=True,
            voided=True,
        ),
        Scenario(
            "late-void",
            [("ingest 1", drivers.ingest_run), ("void", drivers.void_open), ("ingest 2", drivers.ingest_until_idle)],
            there=2,
        ),
        Scenario(
            "late-rejection",
            [
                ("ingest 1", drivers.ingest_run),
                ("somebody else", partial(drivers.take_name, table=USERS)),
                ("ingest 2", drivers.ingest_until_idle),
                ("publish", drivers.publish_run),
            ],
            news=[[*NEWS[0], *NEWS[1]], NEWS[2]],
            there=2,
            rejects=True,
        ),
        Scenario("session-void", [("session", drivers.session), ("void", drivers.void_open)]),
        Scenario("replay", [("ingest", drivers.ingest_run), ("replay", drivers.replay), ("publish", drivers.publish_run)]),
        Scenario(
            "two-replays-beside",
            [
                ("replay 1", partial(drivers.replay, namespace=BESIDE)),
                ("replay 2", partial(drivers.replay, namespace=BESIDE)),
                ("ingest", drivers.ingest_run),
            ],
            beside=True,
        ),
        Scenario("maintenance", [("ingest", drivers.ingest_until_idle), ("maintenance", drivers.maintenance), ("void", drivers.void_open)]),
        Scenario("session-maintenance", [("session", drivers.session), ("maintenance", drivers.maintenance)], there=2),
        Scenario(
            "session-ingest",
            [("session", drivers.session), ("ingest", drivers.ingest_run), SHIPPER],
        ),
        Scenario(
            "late-ingest",
            [
                ("ingest 1", drivers.ingest_run),
                SHIPPER,
                ("ingest 2", drivers.ingest_until_idle),
            ],
        ),
        Scenario(
            "erase",
            [("erase", partial(drivers.erase_run, key="b")), ("ingest", drivers.ingest_until_idle), ("publish", drivers.publish_run)],
            there=2,
            known=1,
            news=OF_ERASED,
            erases=["b"],
        ),
        Scenario(
            "two-erases",
            [("erase b", partial(drivers.erase_run, key="b")), ("erase c", partial(drivers.erase_run, key="c"))],
            there=2,
            known=1,
            news=OF_ERASED,
            erases=["b", "c"],
        ),
        Scenario(
            "session-erase",
            [
                ("session", drivers.session),
                ("erase", partial(drivers.erase_run, key="b")),
                ("shipper", partial(drivers.ship, segments=OF_ERASED[1:])),
            ],
            known=1,
            news=OF_ERASED,
            erases=["b"],
        ),
        Scenario(
            "session-replay-again",
            [("session", drivers.session), ("replay", drivers.replay), ("again", drivers.again)],
            afterwards=["again"],
            sends_again=True,
        ),
        Scenario(
            "session-stop",
            [
                ("session 1", drivers.session),
                ("stop", drivers.stop_session),
                ("session 2", drivers.session),
                SHIPPER,
            ],
        ),
        Scenario(
            "two-voids",
            [
                ("ingest 1", drivers.ingest_run),
                ("void 1", drivers.void_open),
                ("void 2", drivers.void_open),
                ("ingest 2", drivers.ingest_until_idle),
            ],
            there=2,
        ),
        Scenario(
            "void-rebuild",
            [("rebuild", drivers.rebuild_run), ("void", drivers.void_open), ("ingest", drivers.ingest_until_idle)],
            rebuilds=True,
        ),
        Scenario(
            "erase-void",
            [("erase", partial(drivers.erase_run, key="b")), ("void", drivers.void_open), ("ingest", drivers.ingest_until_idle)],
            there=2,
            known=1,
            news=OF_ERASED,
            erases=["b"],
        ),
        Scenario(
            "erase-rebuild",
            [("erase", partial(drivers.erase_run, key="b")), ("rebuild", drivers.rebuild_run)],
            there=2,
            known=1,
            news=OF_ERASED,
            rebuilds=True,
            erases=["b"],
        ),
        Scenario(
            "erase-replay",
            [
                ("erase", partial(drivers.erase_run, key="b")),
                ("replay", drivers.replay),
                ("beside", partial(drivers.replay, namespace=BESIDE)),
            ],
            there=2,
            known=1,
            news=OF_ERASED,
            erases=["b"],
            beside=True,
        ),
        Scenario(
            "erase-pack",
            [("pack", drivers.pack), ("erase b", partial(drivers.erase_run, key="b"))],
            there=2,
            known=2,
            news=OF_ERASED,
            erases=["b"],
            packs=True,
        ),
        Scenario(
            "pack-replay",
            [("ingest", drivers.ingest_until_idle), ("pack", drivers.pack), ("replay", drivers.replay)],
            packs=True,
        ),
        Scenario(
            "two-packs", [("pack 1", drivers.pack), ("pack 2", drivers.pack), ("rebuild", drivers.rebuild_run)], packs=True, rebuilds=True
        ),
        Scenario("maintenance-rebuild", [("maintenance", drivers.maintenance), ("rebuild", drivers.rebuild_run)], rebuilds=True),
        Scenario(
            "publish-maintenance",
            [("ingest", drivers.ingest_until_idle), ("publish", drivers.publish_run), ("maintenance", drivers.maintenance)],
            there=2,
        ),
        Scenario("two-replays", [("replay 1", drivers.replay), ("replay 2", drivers.replay), ("ingest", drivers.ingest_run)]),
        Scenario(
            "ship-again",
            [
                ("ingest", drivers.ingest_until_idle),
                ("shipper again", partial(drivers.ship_again, mutations=NEWS[0], number=FIRST_NEWS)),
                ("replay", drivers.replay),
            ],
        ),
        Scenario(
            "conflict",
            [
                ("ingest", drivers.ingest_until_idle),
                ("somebody else", partial(drivers.ship_again, mutations=[put("x", 9, "x9")], number=FIRST_NEWS)),
                ("decide", partial(drivers.decide, rightly=NEWS[0])),
            ],
            decides=True,
        ),
        Scenario(
            "repair",
            [
                ("ingest", drivers.ingest_until_idle),
                ("repair", partial(drivers.repair, number=FIRST_NEWS, rightly=NEWS[0])),
                SHIPPER,
            ],
            afterwards=["repair"],
            damaged=True,
        ),
        Scenario(
            "release",
            [
                ("ingest", drivers.ingest_until_idle),
                ("release", partial(drivers.release, number=FIRST_NEWS)),
                SHIPPER,
            ],
            afterwards=["release"],
            damaged=True,
        ),
        Scenario(
            "fast-clock",
            [
                ("ingest 1", drivers.ingest_run),
                ("ingest 2, fast", partial(drivers.on_fast_clock, work=drivers.ingest_until_idle)),
                ("maintenance", drivers.maintenance),
            ],
            there=2,
        ),
        Scenario(
            "jumping-clock",
            [("session", drivers.session), ("clock", drivers.jumping_clock), SHIPPER],
        ),
        Scenario(
            "restored-record",
            [("again", drivers.again), ("backup", drivers.restore_published), ("session", drivers.session)],
            lost=True,
        ),
        Scenario(
            "lost-progress",
            [("session", drivers.session), ("loss", drivers.lose_progress), ("publish", drivers.publish_run)],
            lost=True,
        ),
        Scenario("leases", [("count 1", drivers.count), ("count 2", drivers.count), ("count 3", drivers.count)]),
        Scenario(
            "restored-bucket",
            [("ingest and backup", drivers.restore_bucket), ("publish", drivers.publish_run)],
            rebuilds=True,
            restores=True,
        ),
    )
}


@dataclass
class Result:
    """What a schedule has come to. `violations`: what does not hold, none if all is well."""

    violations: list[str] = field(default_factory=list)
    steps: int = 0
    writes: int = 0
    trace: list[str] = field(default_factory=list)


class Stage:
    """Where scenarios are played: what they have in common is made once."""

    def __init__(self, here: Here) -> None:
        self._here = here
        self._begun: dict[Hashable, Place] = {}

    def play(self, scenario: Scenario, schedule: Schedule, *, keep: bool = False) -> Result:
        """Run the scenario as the schedule says, and look at what it has come to."""
        begins = (
            *(scenario.there, scenario.known, scenario.damaged, scenario.voided, *scenario.began),
            *map(tuple, [*scenario.before, *scenario.news]),
        )
        if begins not in self._begun:
            self._begun[begins] = self._begin(scenario)
        begun = self._begun[begins]
        world = World(keep=keep)
        place = self._here.place = begun.copied(world)
        result = Result()
        try:
            rivals = world.run([(name, partial(work, place)) for name, work in scenario.rivals], schedule)
            result.steps, result.writes = world.steps, world.writes
            world.note("--- all have ended, and are let alone")
            settled = _settle(place, scenario, rivals)
            result.violations += [*_honest(scenario, [*rivals, *settled]), *_advice(place, scenario), *_holds(place, scenario)]
        except Endless as error:
            result.violations.append(f"no end: {error}")
        result.trace = world.trace or []
        place.store.forget()
        return result

    def _begin(self, scenario: Scenario) -> Place:
        place = self._here.place = Place.create(World())
        for some in [*scenario.before, *scenario.news[: scenario.known]]:
            place.ship(some, with_schema=not place.segments)
            if scenario.voided and place.segments == 1:
                _alone(place, "before", drivers.void_planned)
            _alone(place, "before", drivers.ingest_until_idle)
            _alone(place, "before", drivers.publish_if_due)
        for work in scenario.began:
            _alone(place, "before", work)
        for at, some in enumerate(scenario.news[scenario.known : scenario.there]):
            place.ship(some, with_schema=not place.segments, is_damaged=scenario.damaged and not at)
        return place


def _alone(place: Place, name: str, work: Work) -> Driver:
    (driver,) = place.world.run([(name, partial(work, place))], Deviations(()))
    if name == "before" and driver.error is not None:
        raise driver.error
    return driver


def _settle(place: Place, scenario: Scenario, rivals: list[Driver]) -> list[Driver]:
    """What is done by whoever is on call, and by the next runs."""
    works = dict(scenario.rivals)
    place.world.block(lambda: False, 3600.0)
    done = []
    if scenario.restores:
        # Whoever looks sees what the next runs say, and does it.
        tried = [*rivals, _alone(place, "ingest", drivers.ingest_until_idle), _alone(place, "publish", drivers.publish_if_due)]
        if any(isinstance(each.error, ChainMismatch) for each in tried):
            done.append(_alone(place, "rebuild", drivers.rebuild_run))
    if chains.unfinished(place.store, CLUSTER) is not None:
        done.append(_alone(place, "rebuild goes on", partial(drivers.rebuild_run, topics=AGAIN if scenario.topics else None)))
    for each in rivals:
        if each.name in scenario.afterwards and not scenario.damaged and not _has_succeeded(each):
            done.append(_alone(place, f"{each.name}, asked for again", works[each.name]))
        if each.name == "shipper" and not _has_succeeded(each):
            rest = scenario.news[place.segments - len(scenario.before) :]
            done.append(_alone(place, "shipper goes on", partial(drivers.ship, segments=rest)))
    if scenario.beside:
        # An erasure waits for it, and says so.
        done.append(_alone(place, "replay, cleared", partial(drivers.cleared, namespace=BESIDE)))
    if scenario.lost:
        # Runs that find that their record is older than Kafka's progress ask for it.
        done.append(_alone(place, "publish, from the beginning", partial(drivers.publish_run, everything=True)))
    for _ in range(3 if scenario.damaged or scenario.rejects else 2):
        if scenario.decides:
            done.append(_alone(place, "decide", partial(drivers.decide, rightly=scenario.news[0])))
        done.append(_alone(place, "ingest", drivers.ingest_until_idle))
        done.append(_alone(place, "publish", drivers.publish_if_due))
        if scenario.rejects:
            done.append(_alone(place, "clear", drivers.clear_held))
        if scenario.damaged:
            # It is quarantined now, whoever was interrupted.
            done += [_alone(place, f"{name}, asked for again", works[name]) for name in scenario.afterwards]
    if scenario.beside:
        # One that has not come to its first seal goes on when it is planned again.
        done.append(_alone(place, "replay, planned again", partial(drivers.replay, namespace=BESIDE)))
    for key in scenario.erases:
        if scenario.known == scenario.there and any(each.name == f"erase {key}" and _has_erased(each) for each in rivals):
            continue
        # What came in later is archived now.
        done.append(_alone(place, f"erasure of {key}, asked for again", partial(drivers.erase_run, key=key)))
        done.append(_alone(place, "publish", drivers.publish_if_due))
    if scenario.beside:
        done.append(_alone(place, "replay, asked for again", partial(drivers.replay, namespace=BESIDE)))
    done.append(_alone(place, "care", drivers.care))
    if scenario.packs:
        done.append(packed := _alone(place, "pack", drivers.pack))
        place.early += packed.outcome or ()
    return done


def _has_succeeded(driver: Driver) -> bool:
    return driver.over and driver.error is None


def _has_erased(driver: Driver) -> bool:
    """Whether the erasure has said that nothing is left to be done."""
    return _has_succeeded(driver) and driver.outcome.done and not driver.outcome.again


# --- what has to hold


def _honest(scenario: Scenario, ended: list[Driver]) -> Iterator[str]:
    """Errors are those of the product, and none advises what destroys."""
    for driver in ended:
        error = driver.error
        if error is None:
            continue
        if isinstance(error, Endless):
            yield f"{driver.name}: no end: {error}"
        elif not isinstance(error, WritetimeError):
            yield f"{driver.name}: {type(error).__name__}: {error}"
        elif (isinstance(error, ChainMismatch) and not scenario.restores) or (
            "writetime rebuild" in (error.hint or "") and not scenario.rebuilds
        ):
            yield f"{driver.name} advises to rebuild: {error}"
        elif driver in ended[len(scenario.rivals) :]:
            yield f"{driver.name} alone fails: {error}"


def _advice(place: Place, scenario: Scenario) -> Iterator[str]:
    """No error that is logged, nor the reason for which a table waits, advises what destroys."""
    for event in place.logged:
        if "writetime rebuild" in str(event.get("hint", "")) and not scenario.rebuilds:
            yield f"logged, and advises to rebuild: {event['event']}: {event.get('error') or event.get('message')}"
        elif "another chain" in str(event) and not scenario.restores:
            yield f"logged, and says another chain: {event['event']}: {event.get('error') or event.get('message')}"


def _holds(place: Place, scenario: Scenario) -> Iterator[str]:
    yield from place.early
    yield from place.store.lost
    if len(place.counted) != len(set(place.counted)):
        yield f"two holders of a lease have counted the same: {place.counted}"
    yield from _batches(place)
    yield from _archive(place)
    effective = _effective(place)
    first = chains.first_of(place.store, CLUSTER, history(place.store, CLUSTER).last)
    yield from _read_once(sealed for number, sealed in effective.items() if number >= first)
    yield from _erased(place, scenario)
    for table in (ORDERS, USERS):
        expected = {key: each for key, each in place.expected()[table].items() if table != ORDERS or key not in scenario.erases}
        changes = [row for row in place.rows("shop__changes") if row["of"] == table]
        if voided := sorted({row["batch"] for row in changes} - effective.keys()):
            yield f"{table}: changes of batches that have no effect: {voided}"
        changes = [row for row in changes if row["batch"] in effective]
        yield from _state(place, table, expected)
        yield from _tables(place, table, expected, changes)
        yield from _topic(place, scenario, table, changes)
        yield from _topic_of_rebuild(place, table, changes) if scenario.topics else ()
        if scenario.beside:
            rows = {row["id"]: row["value"] for row in place.rows(f"shop__{BESIDE}") if row["of"] == table}
            wanted = {key: each.value for key, each in expected.items() if each.value is not None}
            yield from _differing(f"{table}: rows of the shadow namespace", wanted, rows)


def _batches(place: Place) -> Iterator[str]:
    past = history(place.store, CLUSTER)
    if past.open:
        yield f"batch {past.last} is open"
    published = read_published(place.store, CLUSTER)
    if published is None or past.sealed is None or published.batch != past.sealed.number or published.waiting:
        yield f"published: {published and (published.batch, published.waiting, published.reasons)}, sealed: {past.base}"


def _state(place: Place, table: str, expected: dict[str, Mutation]) -> Iterator[str]:
    sealed = history(place.store, CLUSTER).sealed
    found: dict[str, Mutation] = {}
    for table_id, versions in (sealed.state if sealed is not None else {}).items():
        for bucket, version in enumerate(versions.buckets):
            uri = place.config.state_url(layout.state_shard(CLUSTER, table_id, versions.generation, bucket, versions.of))
            if version and version not in place.shards.of(uri):
                yield f"{table}: version {version} of a shard is gone, which the last seal names"
                continue
            some = {key.decode(): Mutation(*json.loads(state)) for key, state in place.shards.at(uri, version).items()}
            found |= {key: each for key, each in some.items() if each.table == table}
    yield from _differing(f"{table}: state", dict(expected), found)


def _effective(place: Place) -> dict[int, Sealed]:
    """The sealed batches that take effect."""
    past = history(place.store, CLUSTER)
    found = {}
    for number in range(1, past.last + 1):
        sealed = read_sealed(place.store, CLUSTER, number)
        if sealed is not None and sealed.void is None:
            found[number] = sealed
    return found


def _erased(place: Place, scenario: Scenario) -> Iterator[str]:
    """Nothing of an erased key is left, nor the request that has the key itself. Tables and state are looked at in full."""
    for info in place.store.names(layout.archive_prefix(CLUSTER)):
        if any(each.key in scenario.erases and each.table == ORDERS for each in mutations_of(segment_object.read(place.store, info.name))):
            yield f"{info.name} holds an erased key"
    yield from (f"{info.name} is left" for info in place.store.names(layout.erasure_requests(CLUSTER)))


def _read_once(sealed: Iterable[Sealed]) -> Iterator[str]:
    """No segment is read by two batches of a chain, whose accounts would hold it twice; replays read again."""
    counts = Counter(
        layout.plain(part.object) for each in sealed if each.kind in ("ingest", "rebuild") for part in each.segments if part.ok
    )
    yield from (f"{name} was ingested by {count} batches" for name, count in counts.items() if count > 1)


def _tables(place: Place, table: str, expected: dict[str, Mutation], changes: list[dict[str, Any]]) -> Iterator[str]:
    rows = {row["id"]: row["value"] for row in place.rows("shop") if row["of"] == table}
    wanted = {key: each.value for key, each in expected.items() if each.value is not None}
    yield from _differing(f"{table}: current rows", wanted, rows)
    first = chains.first_of(place.store, CLUSTER, history(place.store, CLUSTER).last)
    if strange := [_place(row) for row in changes if row["batch"] < first]:
        yield f"{table}: changes of an earlier chain: {strange}"
    places = sorted(map(_place, changes))
    if len(places) != len(set(places)):
        yield f"{table}: changes twice: {places}"
    now: dict[str, str | None] = {}
    for row in sorted(changes, key=_place):
        key = row["key"]["id"]
        if _value(row["before"]) != now.get(key):
            yield f"{table}: change {_place(row)} of {key} begins with {_value(row['before'])}, and it was {now.get(key)}"
        now[key] = _value(row["after"])
    yield from _differing(f"{table}: changes", wanted, {key: value for key, value in now.items() if value is not None})


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["batch"], row["ordinal"]


def _value(row: dict[str, Any] | None) -> str | None:
    return None if row is None else row["value"]


def _topic(place: Place, scenario: Scenario, table: str, changes: list[dict[str, Any]]) -> Iterator[str]:
    by_key = _events_of(place, f"{PREFIX}.{table}")
    again = (scenario.sends_again and table == ORDERS) or scenario.lost
    for key in scenario.erases if table == ORDERS else ():
        # What was sent before stays in the topic.
        by_key.pop(key, None)
    for key, places in by_key.items():
        # A request that was forgotten half-way is made again.
        if len(_runs(places)) > 1 + again + place.has_forgotten:
            yield f"{table}: events of {key} in the topic are not in order, or are there twice: {places}"
        if places[-1] != max(places):
            yield f"{table}: the last event of {key} in the topic is not the newest: {places}"
    counts = Counter(found for places in by_key.values() for found in places)
    told = set(map(_place, changes))
    if lost := sorted(told - counts.keys()) if not scenario.rebuilds else []:
        yield f"{table}: never sent: {lost}"
    if strange := sorted(counts.keys() - told) if not scenario.rebuilds else []:
        yield f"{table}: sent, and not in the changes table: {strange}"
    rebuilt, before = _rebuilt(place) if scenario.rebuilds else range(0), len(scenario.before) + scenario.voided
    if sent := sorted(found for found, count in counts.items() if found[0] in rebuilt and count > int(again)):
        yield f"{table}: sent, and a rebuild has written them: {sent}"
    if lacking := sorted(found for found in told if again and not scenario.lost and found[0] <= before and counts[found] < 2):
        yield f"{table}: not sent again: {lacking}"


def _events_of(place: Place, topic: str) -> dict[str, list[tuple[int, int]]]:
    """The places of a topic's events by key, in their order."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for partition in place.broker.committed(topic):
        for key, value in partition:
            if key is not None and value is not None:
                found[key.decode()].append(_place(json.loads(value)))
    return found


def _rebuilt(place: Place) -> range:
    """The batches of the last rebuild; empty if it is not finished, or there was none."""
    last = chains.current(place.store, CLUSTER)
    return range(0) if last is None or last.chain.upto is None else range(last.chain.first, last.chain.upto + 1)


def _topic_of_rebuild(place: Place, table: str, changes: list[dict[str, Any]]) -> Iterator[str]:
    """The last rebuild's events are under its prefix, once and in the order of each key; there may be those of an earlier one."""
    rebuilt = _rebuilt(place)
    if not rebuilt:
        return
    in_topic = _events_of(place, f"{AGAIN}.{table}")
    found = {key: [each for each in places if each[0] >= rebuilt.start] for key, places in in_topic.items()}
    for key, places in found.items():
        if places != sorted(set(places)):
            yield f"{table}: events of {key} under {AGAIN} are not in order, or are there twice: {places}"
    told = {_place(row) for row in changes if row["batch"] < rebuilt.stop}
    if wrong := told ^ {each for places in found.values() for each in places}:
        yield f"{table}: under {AGAIN}, or in the changes table, and not in both: {sorted(wrong)}"


def _runs(places: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The places in ascending runs."""
    runs: list[list[tuple[int, int]]] = []
    for each in places:
        if runs and runs[-1][-1] < each:
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


def _archive(place: Place) -> Iterator[str]:
    left = [info.name for info in place.store.names("cdc/")]
    if left:
        yield f"not archived: {left}"
    archived = [info.name for info in place.store.names(layout.archive_prefix(CLUSTER))]
    if len(archived) != place.segments:
        yield f"{place.segments} segments were shipped, the archive has {len(archived)}"
    for info in place.store.names(layout.ledger_of(CLUSTER)):
        entry = LedgerEntry.read(place.store, info.name)
        if entry is not None and entry.state != "archived":
            yield f"ledger: {entry.object} is {entry.state}"


def _differing(what: str, wanted: dict[str, Any], found: dict[str, Any]) -> Iterator[str]:
    for key in sorted({*wanted, *found}):
        if wanted.get(key) != found.get(key):
            yield f"{what}: {key} is {found.get(key)}, not {wanted.get(key)}"
