"""Kinds of quarantined data: their stored texts, what follows from them, and the errors they come from."""

from __future__ import annotations

import pickle

import pytest

from writetime import errors
from writetime.pipeline.documents import Problem
from writetime.pipeline.quarantine.contents import body_of
from writetime.pipeline.quarantine.kinds import QuarantineKind, of_error
from writetime.pipeline.quarantine.record import QuarantineRecord

STORED = {
    "gone": "",
    "replaced": "",
    "oversized": "",
    "corrupt_section": "",
    "corrupt_frame": "frame",
    "torn_tail": "",
    "SegmentError": "",
    "NotASegment": "",
    "UnsupportedSegment": "",
    "CorruptDescriptor": "",
    "CorruptSection": "",
    "DecodeError": "frame mutation",
    "UnknownTable": "frame mutation schema",
    "UnknownColumn": "frame mutation schema",
    "MalformedMutation": "frame mutation",
    "SchemaError": "frame mutation schema",
}
"""Texts in buckets, and what each is: one frame, one whole mutation, solved by a schema."""


def test_stored_texts_are_as_they_were() -> None:
    found = {}
    for kind in QuarantineKind:
        traits = {"frame": kind.is_single_frame, "mutation": kind.is_mutation, "schema": kind.waits_for_schema}
        found[str(kind)] = " ".join(name for name, holds in traits.items() if holds)
    assert found == STORED


@pytest.mark.parametrize("text", ["FromTheFuture", "later_kind", ""])
def test_a_kind_of_a_later_version_keeps_its_text_and_waits_for_an_operator(text: str) -> None:
    kind = QuarantineKind(text)
    assert (str(kind), kind.is_single_frame, kind.waits_for_schema) == (text, False, False)
    assert pickle.loads(pickle.dumps(kind)) == kind
    problem = Problem(kind=kind, position=1, size=1, message="m")
    assert Problem.model_validate_json(problem.model_dump_json()) == problem
    assert problem.model_dump(mode="json")["kind"] == text
    assert body_of(QuarantineRecord("n", "c", kind, "m", 1, 1), b"bytes of anything") is None


def test_a_whole_segment_is_never_shown_as_a_mutation() -> None:
    """It may hold any keyspace, password hashes among them."""
    for kind in QuarantineKind:
        body = body_of(QuarantineRecord("n", "c", kind, "m", 1, 1), bytes(20))
        assert body == (bytes(20) if kind.is_mutation else bytes(8) if kind is QuarantineKind.CORRUPT_FRAME else None)


class RenamedError(errors.UnknownColumn):
    """An error whose class name says nothing."""


def test_a_kind_comes_from_the_class_of_an_error_not_from_its_name() -> None:
    assert of_error(RenamedError("m")) is QuarantineKind.UNKNOWN_COLUMN
    assert of_error(errors.MalformedMutation("m")) is QuarantineKind.MALFORMED_MUTATION
    assert of_error(errors.ObjectNotFound("m")) is QuarantineKind.GONE
    assert of_error(errors.CorruptFrame("m")) is QuarantineKind.SEGMENT_ERROR
    with pytest.raises(TypeError, match="LeaseLost is no reason"):
        of_error(errors.LeaseLost("m"))
