"""A sample of the fuzzer's cases; that the sample gets everywhere; and that the fuzzer would see what it is
there to see."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proof.fuzz import cases, checks
from proof.fuzz import run as runner
from proof.fuzz.cases import BOMBS, Case, make, put_right
from proof.fuzz.checks import Broken, Checker
from proof.fuzz.corpus import Seed, corpus
from proof.fuzz.guard import Guarded
from tests.cassandra.commitlog.test_encode import updates
from tests.examples import examples
from writetime.cassandra.commitlog import frames, segment
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.frames import FrameCheck
from writetime.cassandra.commitlog.segment import REASONS, Ending, Reason, scan
from writetime.cassandra.model import Mutation, PartitionUpdate
from writetime.cassandra.types.vint import write_unsigned
from writetime.kernels import mutation_buffers

SAMPLE = 3000


def test_a_sample_holds_and_gets_everywhere() -> None:
    outcome = runner.run_here(0, 0, SAMPLE)
    assert outcome.failures == []
    assert outcome.cases == SAMPLE
    expected = {f"header: {name}" for name in ("NotASegment", "CorruptDescriptor", "UnsupportedSegment")}
    expected |= {f"not decoded: {name}" for name in ("UnknownTable", "UnknownColumn", "MalformedMutation")}
    # A case has a few damaged places: that very many are one is for tests/cassandra.
    reasons = (said for reason, said in REASONS.items() if reason is not Reason.MANY)
    expected |= {f"problem: {kind.__name__}: {message}" for kind, message in reasons}
    expected |= {f"ending: {ending}" for ending in Ending}
    expected |= {
        "decoded",
        "decoded, with epochs",
        *(f"began as version {version}" for version in (6, 7, 8, 9)),
        "values",
        "no value of its type",
        "schema learnt",
        "schema left out",
        "frames as they were",
        "not encoded",
        "cells decoded twice",
    }
    assert expected - {name for name, count in outcome.seen.items() if count} == set()
    damages = {damage.name for damage in cases._DAMAGES} | {name for name, _ in cases._BODY_DAMAGES + cases._EPOCH_DAMAGES}
    assert damages <= outcome.damage.keys()


def test_a_case_is_its_numbers() -> None:
    assert [make(corpus(), 5, number) for number in range(50)] == [make(corpus(), 5, number) for number in range(50)]
    assert make(corpus(), 5, 7) != make(corpus(), 6, 7)


def test_workers_do_the_same_cases_as_one_alone() -> None:
    alone, together = runner.run_here(3, 0, 301), runner.run(3, 301, 2)
    assert (together.cases, together.damage, together.seen) == (alone.cases, alone.damage, alone.seen)
    assert together.failures == alone.failures == []


@pytest.mark.parametrize("start", corpus().seeds, ids=lambda start: start.name)
def test_what_segments_of_the_corpus_hold(start: Seed) -> None:
    """Unhurt they deliver all, and putting their CRCs right changes nothing in those that are whole."""
    case = Case(1, start, start.content, (), frozenset(start.frames.values()), True, None)
    checker = Checker(corpus())
    checker.check(case)
    checker.finish()
    assert start.frames
    again = bytearray(start.content)
    put_right(again, packed=start.packing is not None)
    if not start.name.startswith("head"):
        assert bytes(again) == start.content


# --- structure first, then damage


hurts = st.lists(st.tuples(st.integers(0, 400), st.sampled_from([b"\0", b"\xff", b"\x80", *map(write_unsigned, BOMBS)])), max_size=3)


@settings(max_examples=examples(80))
@given(st.lists(updates(), min_size=1, max_size=3), hurts, st.booleans())
def test_updates_of_every_shape_hurt_in_any_place(found: list[PartitionUpdate], hurts: list[tuple[int, bytes]], right: bool) -> None:
    bodies = [encode_mutation(Mutation((update,)), corpus().schema) for update in found]
    content = encode_segment(9, 8, bodies, per_section=2)
    start = Seed("made", content, 8, {frame.position: body for frame, body in zip(scan(content).frames, bodies, strict=True)})
    hurt = bytearray(content)
    for place, what in hurts:
        at = 20 + place % (len(hurt) - 20)
        hurt[at : at + len(what)] = what[: len(hurt) - at]
    if right:
        put_right(hurt)
    _CHECKER.check(Case(1, start, bytes(hurt), (), None if right else frozenset(bodies), True, None))
    _CHECKER.finish()


_CHECKER = Checker(corpus())


# --- what the fuzzer must notice


def broken_by(monkeypatch: pytest.MonkeyPatch, count: int = 150) -> set[str]:
    return {failure.kind for failure in runner.run_here(0, 0, count).failures}


def test_notices_that_the_twins_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(buf: bytes, pos: int, end: int) -> tuple[FrameCheck, int]:
        check, size = frames.check_frame(buf, pos, end)
        return (FrameCheck.OK if check is FrameCheck.BAD_BODY else check), size

    monkeypatch.setattr(segment, "check_frame", careless)
    assert broken_by(monkeypatch) == {"broken"}


def test_notices_a_frame_that_was_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if both twins were wrong in the same way."""
    start = next(start for start in corpus().seeds if start.name == "made 3")
    changed = bytearray(start.content)
    frame = scan(start.content).frames[0]
    changed[frame.body_offset + 20] ^= 1
    put_right(changed)
    with pytest.raises(Broken, match="was never written"):
        Checker(corpus()).check(Case(1, start, bytes(changed), (), frozenset(start.frames.values()), True, None))


def test_notices_an_exception_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(*_: object, **__: object) -> None:
        raise KeyError("table")

    monkeypatch.setattr(checks, "decode_mutation", careless)
    assert broken_by(monkeypatch) == {"KeyError"}


def test_notices_memory_taken_on_a_length_s_word(monkeypatch: pytest.MonkeyPatch) -> None:
    real = checks.decode_mutation

    def greedy(*args: object, **kwargs: object) -> Mutation:
        assert bytearray(80 << 20)
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(checks, "decode_mutation", greedy)
    case = make(corpus(), 0, 0)
    while not scan(case.content).frames or case.number % checks.TRACED_EVERY:
        case = make(corpus(), 0, case.number + checks.TRACED_EVERY)
    with pytest.raises(Broken, match="bytes were allocated at once"):
        Checker(corpus()).check(case)


def test_notices_that_the_decoders_differ_and_whose_case_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mutation_buffers._times
    monkeypatch.setattr(mutation_buffers, "_times", lambda array, size: real(np.where(array == 0, 1, array), size))
    failures = runner.run_here(0, 0, 100).failures
    assert failures
    assert {failure.kind for failure in failures} == {"broken"}
    again = runner.run_here(0, failures[0].number, 1).failures
    assert [(failure.number, failure.message) for failure in again] == [(failures[0].number, failures[0].message)]


def test_notices_bytes_written_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mutation_buffers._batches

    def careless(out: Any, *rest: Any) -> Any:
        value = out.cells.value
        np.lib.stride_tricks.as_strided(value, (len(value) + 1,))[-1] = 0
        return real(out, *rest)

    monkeypatch.setattr(mutation_buffers, "_batches", careless)
    (failure, *_) = runner.run_here(0, 0, 10).failures
    assert "wrote outside an array" in failure.message


def test_notices_a_crash_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Checker.check

    def crashing(checker: Checker, case: Case) -> None:
        if case.number == 17:
            os.kill(os.getpid(), signal.SIGKILL)
        real(checker, case)

    monkeypatch.setattr(Checker, "check", crashing)
    outcome = runner.run(0, 40, 2)
    assert [(failure.number, failure.kind) for failure in outcome.failures] == [(17, "crash")]
    # What the killed worker had done and not yet told is lost from the counts, never what it would have done
    # next.
    assert outcome.cases >= 31


def test_notices_a_hang_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Checker.check

    def hanging(checker: Checker, case: Case) -> None:
        while case.number == 5:
            signal.pause()
        real(checker, case)

    monkeypatch.setattr(Checker, "check", hanging)
    monkeypatch.setattr(runner, "MOST_SECONDS", 1.0)
    outcome = runner.run(0, 8, 1)
    assert [(failure.number, failure.kind) for failure in outcome.failures] == [(5, "hang")]


@pytest.mark.parametrize("where", ["at_the_end", "at_the_beginning"])
def test_a_guarded_byte_cannot_be_read(where: str) -> None:
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        view = np.frombuffer(getattr(Guarded(100), where)(b"some bytes"), np.uint8)
        outside = np.lib.stride_tricks.as_strided(
            view[-1:] if where == "at_the_end" else view[:1], (2,), (1 if where == "at_the_end" else -1,)
        )
        os._exit(int(outside[1]) & 0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) in (signal.SIGSEGV, signal.SIGBUS)


def test_a_failed_case_is_kept_and_can_be_made_again(tmp_path: Path) -> None:
    failure = runner.Failure(0, 11, "broken", "it is", [], "made 3")
    path = runner.keep(failure, tmp_path)
    assert path.read_bytes() == make(corpus(), 0, 11).content
    assert '"number": 11' in path.with_suffix(".json").read_text()


def test_the_first_body_that_is_decoded_is_not_charged_for_what_is_imported() -> None:
    """Arrow imports pandas for its first array, which takes nearly as much as a case may."""
    script = """
from pathlib import Path
from proof.fuzz.checks import Checker
from proof.fuzz.corpus import corpus

def used():  # not ru_maxrss, in which a child begins with what its parent had
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])

checker, start = Checker(corpus()), corpus().seeds[0]
before = used()
checker.twins.take(1, next(iter(start.frames.values())), start.version)
checker.finish()
print(used() - before)
"""
    grown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300).stdout
    assert int(grown) < 16 << 10
