"""Rules under which the product says that it is complete up to a time too late, or never says so. Each must be
noticed, otherwise the proof proves nothing.

Strategy: planning and the documents run in this process, so attributes of modules are replaced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from shippers.sign_off import SignOff
from spark_jobs import publish
from writetime.pipeline import planner, publish_progress, watermark

_Patch = tuple[Any, str, Any]


def _unsynced() -> list[_Patch]:
    """What is not synced yet is not subtracted."""
    return [
        (
            watermark,
            "_signed_until",
            lambda facts: None if facts.signed_off is None else min(facts.signed_off.at, facts.signed_off.written),
        )
    ]


def _listed_first() -> list[_Patch]:
    """The sign-offs are read long after the bucket was listed."""
    planned = watermark.planned

    def late(store: Any, before: Any, sealed: Any, facts: Any, *rest: Any) -> Any:
        time.sleep(12)
        # 25 s would be subtracted.
        fresh = planner.read_facts(store, facts[0].node.cluster) if facts else facts
        return planned(store, before, sealed, fresh, *rest)

    return [(watermark, "planned", late), *_less_subtracted(timedelta(seconds=11))]


def _less_subtracted(by: timedelta) -> list[_Patch]:
    signed = watermark._signed_until

    def sooner(facts: Any) -> Any:
        found = signed(facts)
        return None if found is None else found + by

    return [(watermark, "_signed_until", sooner)]


def _left_out() -> list[_Patch]:
    """What was listed and left out of the batch does not count."""
    return [(planner.LeftOut, "without", lambda *_: None)]


def _members() -> list[_Patch]:
    """Nodes that have not signed off do not count."""
    return [(watermark, "members", lambda facts, *_: {each.node.path for each in facts if each.signed_off is not None})]


def _one_answer() -> list[_Patch]:
    """A node no longer counts as soon as the last answer of all does not name it."""

    def members(facts: Any, *_: Any) -> set[str]:
        answers = [each.signed_off for each in facts if each.signed_off is not None]
        return set(max(answers, key=lambda answer: answer.written).members) if answers else {each.node.path for each in facts}

    return [(watermark, "members", members)]


def _kafka() -> list[_Patch]:
    """What is in the tables counts as sent to Kafka."""

    def claimed(store: Any, cluster: str, published: Any) -> Any:
        return watermark.read(store, cluster, planner.history(store, cluster).sealed).until

    # A publisher that is slow, so that batches are sealed meanwhile.
    with_heartbeat = publish._with_heartbeat

    def slow(*about: Any) -> Any:
        time.sleep(10)
        return with_heartbeat(*about)

    return [(publish, "complete_in_kafka", claimed), (publish_progress, "complete_in_kafka", claimed), (publish, "_with_heartbeat", slow)]


def _frozen() -> list[_Patch]:
    """Nothing is ever signed off again after the first minute."""
    of, begun = SignOff.of, time.monotonic()
    return [(SignOff, "of", lambda self, *about: of(self, *about) if time.monotonic() < begun + 60 else None)]


RULES: Final[dict[str, Callable[[], list[_Patch]]]] = {
    "unsynced": _unsynced,
    "listed-first": _listed_first,
    "left-out": _left_out,
    "members": _members,
    "one-answer": _one_answer,
    "kafka": _kafka,
    "frozen": _frozen,
}


@contextmanager
def broken(rule: str) -> Iterator[None]:
    """Run under that rule; "" is none."""
    patches = RULES[rule]() if rule else []
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, value in patches:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)
