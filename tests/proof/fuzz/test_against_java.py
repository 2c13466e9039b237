"""The comparison with Cassandra's own reader: a sample with the real one, and that a difference would
show."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proof.fuzz.against_java import Differential, Differs, run, teaching_folder
from proof.fuzz.cases import Case
from proof.fuzz.corpus import corpus
from writetime.cassandra.commitlog.mutation import decode_mutation
from writetime.cassandra.commitlog.segment import scan


@pytest.fixture(scope="module")
def differential(tmp_path_factory: pytest.TempPathFactory) -> Differential:
    folder = tmp_path_factory.mktemp("teaching")
    return Differential(teaching_folder(folder, corpus()))


def whole() -> Case:
    start = next(start for start in corpus().seeds if start.name.startswith("recorded shop.orders"))
    return Case(0, start, start.content, (), frozenset(start.frames.values()), True, None)


def as_java_would(differential: Differential, case: Case) -> list[dict[str, Any]]:
    """What the reader delivers of a segment that is in order, by our own account."""
    found = scan(case.content)
    bodies = {frame: found.body(frame) for frame in found.frames}
    version = found.descriptor.version
    decoded = {frame: decode_mutation(body, differential.schema, version=version) for frame, body in bodies.items()}
    lines = (differential.lines.line(found, frame, mutation) for frame, mutation in decoded.items())
    return [json.loads(line) | {"crc": zlib.crc32(body)} for line, body in zip(lines, bodies.values(), strict=True)]


def another_value(line: dict[str, Any]) -> None:
    row = line["updates"][0]["rows"][0]
    row["cells"][0]["value"] += "00"


CHANGES: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
    ("we have none there", lambda line: line.update(pos=line["pos"] + 1)),
    ("other bytes", lambda line: line.update(crc=line["crc"] ^ 1)),
    ("and we say", another_value),
    ("and we say", lambda line: line.update(pk="00")),
]


@pytest.mark.parametrize(("message", "change"), CHANGES, ids=["position", "bytes", "value", "key"])
def test_a_difference_shows(differential: Differential, message: str, change: Callable[[dict[str, Any]], None]) -> None:
    case = whole()
    differential.compare(case, as_java_would(differential, case))
    lines = as_java_would(differential, case)
    change(next(line for line in lines if line["updates"][0]["rows"] and line["updates"][0]["rows"][0]["cells"]))
    with pytest.raises(Differs, match=message):
        differential.compare(case, lines)


@pytest.mark.parametrize("made", [False, True], ids=["shadowed", "alone"])
def test_what_only_we_say_must_be_shadowed(differential: Differential, made: bool) -> None:
    row = {"ck": [], "del": {"ts": 5, "ldt": 6}, "cells": []}
    ours = {"pos": 1, "updates": [{"rows": [row | {"live": {"ts": 9 if made else 4}}]}]}
    java = {"pos": 1, "updates": [{"rows": [row]}]}
    if made:
        with pytest.raises(Differs, match="only we say"):
            differential._explained(java, ours)
    else:
        differential._explained(java, ours)
    with pytest.raises(Differs, match="only Java says"):
        differential._explained(ours, java)


@pytest.mark.cassandra
def test_a_sample_with_the_real_reader(differential: Differential, tmp_path: Path) -> None:
    folder, place = tmp_path / "teaching", tmp_path / "cases"
    folder.mkdir()
    place.mkdir()
    teaching_folder(folder, corpus())
    assert run(60, 2, differential, folder, place) == []
    assert differential.seen["mutations that both decode, equal"] > 80
