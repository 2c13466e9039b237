"""Some orders of drivers' requests, in each scenario; that fences matter; and that a schedule is the same story each time."""

from __future__ import annotations

import pytest

from proof.interleavings import run
from proof.interleavings.jobs import installed
from proof.interleavings.scenario import ALL, Stage
from proof.interleavings.schedule import Deviation, Deviations, shrunk

_SEEDS = range(1, 8)


def test_whatever_the_order_each_mutation_is_everywhere_once() -> None:
    with installed() as here:
        stage = Stage(here)
        found = [run.seeds_of(stage, name, _SEEDS) for name in ALL]
    assert sum(each.schedules for each in found) == len(ALL) * len(_SEEDS)
    assert {each.scenario: each.failed for each in found if each.failed} == {}


@pytest.mark.parametrize(("rule", "name"), [("take-back", "void"), ("take-over", "rebuild-publish")])
def test_a_fence_that_is_left_out_is_noticed(rule: str, name: str) -> None:
    assert run.share(name, range(30), rule, first_only=True).failures


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        # Events of the first batch, voided, were committed on top of the next one's.
        ("first-batch", "105:stall:0"),
        # The owner of topics that did not exist yet was asked for.
        ("first-again", "69:go:1 166:kill:0"),
        # After a rebuild, maintenance took a voided batch back without naming its chain.
        ("rebuilt-maintenance", "93:kill:0"),
        ("two-voids", "83:lose:0 98:stall:0 209:go:0"),
        # A late driver of a voided batch committed while an erasure ran, which then expired the snapshot that says so.
        ("erase-void", "12:go:3 91:go:0 112:go:0 213:go:0"),
        # A run committed changes of a table that another run of the batch had rejected meanwhile.
        ("late-rejection", "107:lose:0"),
        # A run had what it committed of a table taken back by one that rejected it, and sealed the batch.
        ("late-rejection", "110:stall:1 154:lose:0 228:stall:0 302:go:0"),
        # A late request to send a table again took the record of a later batch for one of another chain, and began it anew.
        ("restored-record", "76:stall:0 102:go:1 161:stall:0 170:stall:0"),
        # `published/` was put back to before a request of which some events had been sent: they may come a third time.
        ("restored-record", "21:go:3 112:stall:3 114:go:1 133:go:0 186:stall:0"),
    ],
)
def test_a_schedule_that_failed_once(name: str, schedule: str) -> None:
    assert run.story(name, schedule).violations == []


def test_a_schedule_is_one_story() -> None:
    text = "20:go:0 60:stall:1 90:kill:0"
    first, second = (run.story("session-publish", text) for _ in range(2))
    assert first.trace == second.trace
    assert any("is killed" in line for line in first.trace)


def test_what_a_failure_does_not_need_is_left_out() -> None:
    given = [Deviation(at, "kill", 3) for at in (3, 5, 8, 13)]
    assert list(shrunk(given, lambda schedule: any(each.at == 8 for each in schedule.given)).given) == [Deviation(8, "go", 0)]
    assert str(Deviations([Deviation.parse("8:stall:1")])) == "8:stall:1"
