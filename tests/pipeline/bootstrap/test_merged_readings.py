"""A reading is a statement about its time. Whatever is merged first, it or the log of that time, once or twice, in whatever
state of the pipeline it began: the row becomes the cluster's, or its key is noted, and then another reading settles it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from writetime.cassandra.merge import row_codec
from writetime.cassandra.merge.counters import Shard, encode_context, statement, total
from writetime.cassandra.merge.liveness import is_live, live_cells
from writetime.cassandra.merge.row_codec import Engine
from writetime.cassandra.merge.stand_ins import is_unknown, place
from writetime.cassandra.merge.unknown_marker import UNKNOWN_TTL, list_path, may_be_unknown
from writetime.cassandra.model import Cell, DeletionTime, Liveness, Row
from writetime.pipeline.bootstrap.difference import Comparison
from writetime.pipeline.bootstrap.rows import Reading

KEY = (b"\0\0\0\1",)
START = 1_700_000_000
END = START + 500
LIST, COUNTER = "l", "n"
_REFERENCE, _EPOCH = 1_262_304_000_000, 12_219_292_800_000
DAY = 86_400


def us(second: float) -> int:
    return int((START + second) * 1_000_000)


@dataclass(frozen=True)
class Write:
    """What a statement wrote at a second, as the log has it; not `logged`: before the table was captured."""

    second: int
    row: Row
    logged: bool = True


@dataclass(frozen=True)
class Story:
    writes: Sequence[Write]
    read: Sequence[int] = (40,)
    element_times: bool = True
    ends: int = 500

    @property
    def is_counter(self) -> bool:
        return any(cell.column == COUNTER for write in self.writes for cell in write.row.cells)

    @property
    def comparison(self) -> Comparison:
        names = frozenset(cell.column for write in self.writes for cell in write.row.cells if cell.path is not None)
        untold = frozenset() if self.element_times else names
        return Comparison(lists=frozenset({LIST}), untold=untold, counter=self.is_counter, first=True)

    def truth(self, second: int) -> Row:
        state = b""
        for write in self.writes:
            if write.second <= second:
                state = self.merged(state, row_codec.encode(write.row), "python")
        return row_codec.decode(state) if state else self.nothing

    @property
    def nothing(self) -> Row:
        return Row(self.writes[0].row.clustering)

    def merged(self, a: bytes, b: bytes, engine: Engine) -> bytes:
        return row_codec.merge(a, b, counter=self.is_counter, engine=engine)

    def shown(self, row: Row, second: int) -> object:
        """What SELECT returns, in a form in which a stand-in equals the real thing."""
        now = START + second
        cells = live_cells(row, now=now)
        if not cells and not is_live(row.liveness, now):
            return None
        found = sorted((cell for cell in cells if cell.column != LIST), key=lambda cell: (cell.column, cell.path or b""))
        elements = sorted((cell for cell in cells if cell.column == LIST), key=place)
        return [self._shown(cell) for cell in (*found, *elements)]

    def _shown(self, cell: Cell) -> object:
        value: object = total(cell.value) if cell.column == COUNTER else cell.value
        path = None if cell.column == LIST else cell.path
        expires_at = cell.local_deletion_time if cell.is_expiring else None
        if cell.path is not None and not self.element_times:
            return cell.column, path, value
        return cell.column, path, value, cell.timestamp, expires_at


# --- readings


def reading_at(second: float) -> Reading:
    """One with a margin of two seconds."""
    return Reading(us(second - 2), int(START + second), us(second + 2))


def answer(story: Story, second: int) -> Row | None:
    """The row as CQL returns it, in the form of `Selection.row`."""
    return _answer(story.truth(second), story, second)


def _answer(row: Row, story: Story, second: int) -> Row | None:
    now, reading = START + second, reading_at(second)
    if row.is_static or live_cells(row, now=now) or is_live(row.liveness, now):
        cells, elements = [], 0
        for cell in sorted(live_cells(row, now=now), key=lambda cell: (cell.column, *place(cell))):
            told = replace(cell, ttl=UNKNOWN_TTL) if cell.is_expiring else cell
            if cell.path is not None and not story.element_times:
                told = Cell(cell.column, reading.as_of, cell.value, cell.path)
            if cell.column == COUNTER:
                told = replace(told, value=statement(total(cell.value), reading.as_of, reading.until))
            if cell.column == LIST:
                told = replace(told, path=list_path(elements, reading.as_of))
                elements += 1
            cells.append(told)
        return Row(row.clustering, cells=tuple(cells))
    return None


def frame(story: Story, pinned: bytes, second: int, ring: Row | None) -> bytes:
    """What a reader writes that began when the pipeline had this state; `b""` if nothing."""
    old = row_codec.decode(pinned) if pinned else None
    comparison, reading = story.comparison, reading_at(second)
    fix = comparison.statics(old, ring.cells if ring else (), reading) if story.nothing.is_static else comparison.row(old, ring, reading)
    return row_codec.encode(fix) if fix else b""


# --- deliveries


@dataclass
class Pipeline:
    """The state of the row. `noted`: the batch that last changed it has noted its key; `twin`: an engine that has to
    agree."""

    story: Story
    twin: Engine = "python"
    state: bytes = b""
    noted: bool = False

    def merge(self, item: bytes, second: int) -> None:
        before = self.state
        if item:
            self.state = self.story.merged(before, item, "python")
            assert self.twin == "python" or self.story.merged(before, item, self.twin) == self.state
        if self.state != before:
            self.noted = self._is_unknown(second)

    def expire(self, second: int) -> None:
        """The batch in which the last expiry up to then is due."""
        self.noted |= self._is_unknown(second)

    def _is_unknown(self, second: int) -> bool:
        return may_be_unknown(self.state) and is_unknown(self.row, START + second, counter=self.story.is_counter)

    @property
    def row(self) -> Row:
        return row_codec.decode(self.state) if self.state else self.story.nothing


def settled(pipeline: Pipeline) -> None:
    """The row is the cluster's, or it is read again until its key is not noted any more, and then it is."""
    story, second = pipeline.story, pipeline.story.ends

    def is_right() -> bool:
        return story.shown(pipeline.row, second) == story.shown(story.truth(second), second)

    pipeline.expire(second)
    assert pipeline.noted or is_right(), "neither the cluster's row nor noted"
    for _ in range(3):
        if pipeline.noted:
            second += 10
            pipeline.noted = False
            pipeline.merge(frame(story, pipeline.state, second, answer(story, second)), second)
    assert not pipeline.noted, "read again without end"
    assert is_right(), "not the cluster's row after another reading"
    second += 10
    pipeline.merge(frame(story, pipeline.state, second, answer(story, second)), second)
    assert is_right()
    assert not pipeline.noted, "a reading of equal data is read again"


def pinned_states(story: Story, second: int) -> Iterator[bytes]:
    """States of the pipeline in which a reading may begin: nothing, and all or the first of what was logged until then."""
    logged = [row_codec.encode(write.row) for write in story.writes if write.logged and write.second <= second]
    states, state = [b""], b""
    for item in logged:
        state = story.merged(state, item, "python")
        states.append(state)
    yield from dict.fromkeys((states[0], states[len(states) // 2], states[-1]))


def deliveries(story: Story) -> Iterator[list[bytes]]:
    """All orders of the log's writes and of the frames of readings, for all states in which those began."""
    logged = [row_codec.encode(write.row) for write in story.writes if write.logged]
    frames = [list(dict.fromkeys(frame(story, pinned, at, answer(story, at)) for pinned in pinned_states(story, at))) for at in story.read]
    for first in frames[0]:
        for second in frames[1] if len(frames) > 1 else [b""]:
            yield from map(list, permutations([item for item in (*logged, first, second) if item]))


# --- stories


def path(second: int, number: int = 0, *, prepended: bool = False) -> bytes:
    """The path of an element that was added to a list at that second."""
    ms = (START + second) * 1000
    ms = 2 * _REFERENCE - ms if prepended else ms
    time = (ms + _EPOCH) * 10_000 + number
    fields = (time & 0xFFFFFFFF, time >> 32 & 0xFFFF, time >> 48 & 0x0FFF | 0x1000)
    return UUID(fields=(*fields, 0x80, 0x01, 0x0123456789AB)).bytes


def cell(name: str, second: int, value: str, at: bytes | None = None, *, ttl: int = 0) -> Cell:
    if ttl:
        return Cell(name, us(second), value.encode(), at, ttl, START + second + ttl)
    return Cell(name, us(second), value.encode(), at)


def gone(name: str, second: int, at: bytes | None = None) -> Cell:
    return Cell(name, us(second), b"", at, 0, START + second)


def wrote(
    second: int, *cells: Cell, logged: bool = True, insert: bool = False, ttl: int = 0, clustering: bool = True, **more: object
) -> Write:
    liveness = Liveness(us(second), ttl, START + second + ttl) if ttl else Liveness(us(second))
    ordered = tuple(sorted(cells, key=lambda cell: (cell.path is not None, cell.column, cell.path or b"")))
    return Write(second, Row(KEY if clustering else None, liveness if insert else None, cells=ordered, **more), logged)  # type: ignore[arg-type]


def deleted(second: int) -> Write:
    return Write(second, Row(KEY, deletion=DeletionTime(us(second), START + second)))


def counted(second: int, node: str, count: int, *, logged: bool = True, clustering: bool = True) -> Write:
    shard = Shard(node.encode() * 16, us(second), count)
    return wrote(second, Cell(COUNTER, us(second), encode_context((shard,))), logged=logged, clustering=clustering)


def overwritten(second: int, *values: str) -> Write:
    elements = [cell(LIST, second, value, path(second, number)) for number, value in enumerate(values)]
    return wrote(second, *elements, complex_deletions={LIST: DeletionTime(us(second) - 1, START + second)})


def elements(second: int, *values: str, logged: bool = True, insert: bool = True, clustering: bool = True) -> Write:
    made = [cell(LIST, second, value, path(second, number)) for number, value in enumerate(values)]
    return wrote(second, *made, logged=logged, insert=insert, clustering=clustering)


STORIES = {
    "counter": Story([counted(20, "a", 18)]),
    "counter, later counts on top": Story([counted(20, "a", 18), counted(60, "a", 20), counted(70, "b", 1)], ends=600),
    "counter with counts from before": Story([counted(5, "a", 3, logged=False), counted(20, "b", 4), counted(60, "a", 9)]),
    "counter, in the seconds of the reading": Story([counted(10, "a", 1), counted(39, "a", 2), counted(41, "a", 5), counted(60, "a", 7)]),
    "counter, two readings": Story([counted(5, "a", 3, logged=False), counted(20, "a", 4), counted(60, "a", 9)], read=(40, 80)),
    "static counter": Story([counted(20, "a", 18, clustering=False), counted(60, "a", 20, clustering=False)]),
    "list": Story([elements(20, "intro", "main")]),
    "list of equal elements": Story([elements(20, "x", "x", "y"), wrote(60, gone(LIST, 60, path(20, 1)))]),
    "list that grows at both ends": Story(
        [
            elements(5, "b", "x", logged=False),
            wrote(20, cell(LIST, 20, "x", path(20))),
            wrote(30, cell(LIST, 30, "a", path(30, prepended=True))),
            wrote(50, cell(LIST, 50, "d", path(50))),
        ]
    ),
    "list edited after the reading": Story([elements(20, "a", "b"), wrote(60, cell(LIST, 60, "A", path(20)))]),
    "list edited before the reading": Story([elements(10, "a", "b"), wrote(20, cell(LIST, 20, "A", path(10)))]),
    "list from before, edited": Story(
        [elements(5, "a", "b", "c", logged=False), wrote(20, cell(LIST, 20, "B", path(5, 1))), wrote(60, gone(LIST, 60, path(5)))]
    ),
    "list shortened": Story([elements(20, "a", "b"), wrote(30, gone(LIST, 30, path(20))), wrote(60, gone(LIST, 60, path(20, 1)))]),
    "list overwritten": Story([elements(20, "a", "b"), overwritten(60, "c", "a")]),
    "list overwritten before the reading": Story([elements(20, "a", "b"), overwritten(30, "c", "a")]),
    "list read twice": Story([elements(20, "a", "b"), wrote(60, cell(LIST, 60, "c", path(60)))], read=(40, 80)),
    "list read twice and shortened": Story([elements(20, "a", "b"), wrote(60, gone(LIST, 60, path(20)))], read=(40, 80)),
    "list of elements that expire": Story(
        [wrote(20, cell(LIST, 20, "a", path(20), ttl=90), cell(LIST, 20, "b", path(20, 1)), insert=True)]
    ),
    "list of 4.x": Story([elements(20, "a", "b", "a"), wrote(60, gone(LIST, 60, path(20)))], element_times=False),
    "list of 4.x of elements that expire": Story(
        [wrote(20, cell(LIST, 20, "a", path(20), ttl=90), cell(LIST, 20, "b", path(20, 1)), insert=True)], element_times=False
    ),
    "static list": Story(
        [elements(20, "a", "b", insert=False, clustering=False), wrote(60, cell(LIST, 60, "c", path(60)), clustering=False)]
    ),
    "row that expires": Story([wrote(20, cell("v", 20, "tv", ttl=90), insert=True, ttl=90)]),
    "row that expires, only its key": Story([wrote(20, insert=True, ttl=90)]),
    "row that expires, and is written again": Story(
        [wrote(20, cell("v", 20, "tv", ttl=90), insert=True, ttl=90), wrote(60, cell("v", 60, "pc", ttl=200), insert=True, ttl=200)]
    ),
    "row from before that expires": Story([wrote(5, cell("v", 5, "tv", ttl=90), insert=True, ttl=90, logged=False)]),
    "cell that expires": Story([wrote(20, cell("v", 20, "tv", ttl=90), cell("w", 20, "x"), insert=True)]),
    "cell that expires before the reading": Story([wrote(20, cell("v", 20, "tv", ttl=9), cell("w", 20, "x", ttl=90), insert=True)]),
    "cell that expires, of a row without a marker": Story([wrote(20, cell("v", 20, "tv", ttl=90))]),
    "row from before without a marker": Story([wrote(5, cell("v", 5, "tv"), logged=False), wrote(60, gone("v", 60))]),
    "row without a marker": Story([wrote(20, cell("v", 20, "tv")), wrote(60, gone("v", 60))]),
    "row from before that loses its cells": Story([wrote(5, cell("v", 5, "tv"), insert=True, logged=False), wrote(60, gone("v", 60))]),
    "row that was inserted": Story([wrote(20, insert=True), wrote(30, cell("v", 30, "a")), wrote(60, cell("v", 60, "b"))], read=(40, 80)),
    "only a key, from before": Story([wrote(5, insert=True, logged=False), wrote(60, cell("v", 60, "b")), wrote(70, gone("v", 70))]),
    "row that is deleted and comes back": Story(
        [wrote(10, cell("v", 10, "a"), insert=True), deleted(20), wrote(30, cell("v", 30, "b"), insert=True)], read=(40, 80)
    ),
    "row that is deleted after the reading": Story([wrote(20, cell("v", 20, "a"), insert=True), deleted(60)], read=(40, 80)),
    "row from before that is deleted and updated": Story(
        [wrote(5, cell("v", 5, "a"), insert=True, logged=False), deleted(20), wrote(30, cell("v", 30, "b"))]
    ),
    "static": Story(
        [wrote(20, cell("s", 20, "a", ttl=90), clustering=False), wrote(60, cell("s", 60, "b"), clustering=False)], read=(40, 80)
    ),
    "user type": Story(
        [
            wrote(20, cell("u", 20, "street", b"\0\0"), cell("u", 20, "city", b"\0\1"), insert=True),
            wrote(30, gone("u", 30, b"\0\1")),
            wrote(60, cell("u", 60, "road", b"\0\0")),
        ]
    ),
    "map and set": Story(
        [
            wrote(5, cell("m", 5, "0", b"z"), insert=True, logged=False),
            wrote(20, cell("m", 20, "1", b"k"), cell("t", 20, "", b"x", ttl=90)),
            wrote(60, gone("m", 60, b"z")),
        ],
        read=(40, 80),
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_the_order_in_which_readings_and_logs_are_merged_does_not_matter(story: Story) -> None:
    for items in deliveries(story):
        for again in ((), items):
            pipeline = Pipeline(story)
            for item in (*items, *again):
                pipeline.merge(item, story.ends)
            settled(pipeline)


# --- any story


@st.composite
def rows_written(draw: st.DrawFn, *, expiring_elements: bool) -> list[Write]:
    """What may happen to a row: INSERTs and UPDATEs with and without a ttl, DELETEs, edits of a list."""
    seconds = draw(st.lists(st.integers(1, 90), min_size=1, max_size=6, unique=True))
    writes, there = list[Write](), list[bytes]()
    for second in sorted(seconds):
        # Before the table was captured there was nothing that a reading cannot see, except an expiring key.
        logged = second > 10
        ttl = draw(st.sampled_from((0, 0, 20, 200)))
        edits = ["append", "prepend", *(["set", "remove"] if there else [])]
        kind = draw(st.sampled_from(("insert", "insert with a cell", "update", "remove cell", "delete", "overwrite", "map", *edits)))
        at = draw(st.sampled_from(there)) if kind in ("set", "remove") else path(second, prepended=kind == "prepend")
        value = draw(st.sampled_from("xy"))
        if kind == "delete":
            writes.append(replace(deleted(second), logged=logged))
            there = []
        elif kind == "overwrite":
            writes.append(replace(overwritten(second, value, "z"), logged=logged))
            there = [path(second, 0), path(second, 1)]
        elif kind == "insert":
            writes.append(wrote(second, insert=True, ttl=ttl if logged else 0, logged=logged))
        else:
            made = {
                "insert with a cell": cell("v", second, value, ttl=ttl),
                "update": cell("v", second, value, ttl=ttl),
                "remove cell": gone("v", second),
                "map": cell("m", second, value, b"k", ttl=ttl if expiring_elements else 0),
                "remove": gone(LIST, second, at),
            }.get(kind, cell(LIST, second, value, at))
            inserts = kind == "insert with a cell"
            writes.append(wrote(second, made, insert=inserts, ttl=ttl if inserts else 0, logged=logged))
            there = [*there, at] if kind in ("append", "prepend") else [each for each in there if kind != "remove" or each != at]
    return writes


@st.composite
def counters_written(draw: st.DrawFn) -> list[Write]:
    counts = {"a": 0, "b": 0}
    writes = []
    for second in sorted(draw(st.lists(st.integers(1, 90), min_size=1, max_size=7, unique=True))):
        node = draw(st.sampled_from("ab"))
        counts[node] += draw(st.integers(-3, 5))
        writes.append(counted(second, node, counts[node], logged=second > 10))
    return writes


@pytest.mark.parametrize("logged_after", [0, 1, 2])
def test_an_older_write_of_an_element_takes_no_stand_in_however_often_it_comes(logged_after: int) -> None:
    """Another replica's log brings it once more in a later batch, when the element has been written again."""
    before, added, edited = cell(LIST, 1, "x", path(1)), cell(LIST, 11, "x", path(11)), cell(LIST, 14, "x", path(11))
    inserted = [wrote(12, insert=True), wrote(13, insert=True)]
    story = Story([wrote(1, before, logged=False), wrote(11, added), *inserted, wrote(14, edited)], (11, 13), element_times=False, ends=100)
    first, second, third, last = (row_codec.encode(write.row) for write in story.writes if write.logged)
    readings = [frame(story, list(pinned_states(story, at))[-1 if at == 13 else 0], at, answer(story, at)) for at in story.read]
    pipeline = Pipeline(story, "auto")
    items = [last, readings[1], first, third, readings[0], *[first] * logged_after, second]
    for item in items:
        pipeline.merge(item, story.ends)
    settled(pipeline)


@given(
    written=st.one_of(
        # Before 5.0 the cluster does not say when an element expires.
        st.booleans().flatmap(lambda timed: st.tuples(rows_written(expiring_elements=timed), st.just(timed))),
        st.tuples(counters_written(), st.just(True)),
    ),
    read=st.lists(st.integers(11, 95), min_size=1, max_size=3),
    ends=st.sampled_from((100, 250, 500)),
    random=st.randoms(use_true_random=False),
)
def test_whatever_is_written_and_read_in_whatever_order(
    written: tuple[list[Write], bool], read: list[int], ends: int, random: Random
) -> None:
    writes, element_times = written
    story = Story(writes, read, element_times, ends)
    items = [row_codec.encode(write.row) for write in writes if write.logged]
    for second in read:
        items.append(frame(story, random.choice(list(pinned_states(story, second))), second, answer(story, second)))
    items += random.sample(items, len(items) // 2)
    random.shuffle(items)
    pipeline = Pipeline(story, "auto")
    for item in items:
        pipeline.merge(item, story.ends)
    settled(pipeline)
