"""Each story ends with tables and topics that equal the cluster's answers, and delays no other story."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from proof.ring import sabotage
from tests.stories.story import Story, stories
from tests.stories.world import World

pytestmark = [pytest.mark.cassandra, pytest.mark.kafka, pytest.mark.spark]

CHOSEN = [story for story in stories() if not story.thorough or os.environ.get("WRITETIME_TESTS") in ("all", "rest")]


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kafka_broker: str) -> Iterator[World]:
    """A node and a pipeline on which the selected stories have run."""
    # One of `proof.ring.sabotage.BY_STORIES`: its stories are to fail.
    rule = os.environ.get("SABOTAGE") or None
    if rule is not None:
        sabotage.apply(rule)
    world = World.create(tmp_path_factory.mktemp("stories"), kafka_broker, rule=rule)
    here = (item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function))
    try:
        world.run([item.callspec.params["story"] for item in here])
        yield world
    finally:
        world.close()


@pytest.mark.parametrize("story", CHOSEN, ids=lambda story: story.name)
def test_tables_and_topics_equal_the_cluster(world: World, story: Story) -> None:
    assert not world.differences[story.name], "\n".join(world.differences[story.name])
    reasons = {label: reason for label, reason in world.reasons.items() if label.startswith(f"{story.name}.")}
    assert reasons.keys() == {f"{story.name}.{table}" for table in story.rejected}, reasons
    for table, reason in story.rejected.items():
        assert reason in reasons[f"{story.name}.{table}"]
    assert any(label.startswith(f"{story.name}.") for label in world.compared), "the story has no captured table"
