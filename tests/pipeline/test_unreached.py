"""What an erasure does not reach is listed, with the time until when it lies there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.config.test_pipeline import MINIMAL, write
from writetime.config.pipeline import PipelineConfig, load
from writetime.pipeline.erase import Outcome, outcome_text
from writetime.pipeline.unreached import Unreached, unreached
from writetime.storage import layout, open_store


def configured(folder: Path, **more: Any) -> PipelineConfig:
    return load(write(folder, MINIMAL | more))


def found(config: PipelineConfig) -> dict[str, Unreached]:
    return {each.place: each for each in unreached(config, open_store(config.bucket), "shop.orders")}


def test_a_place_is_listed_if_there_is_something_in_it_or_nobody_knows(tmp_path: Path) -> None:
    config = configured(tmp_path)
    assert set(found(config)) == {"warehouse", "nodes", "backups", "materialized views", "readers"}
    store = open_store(config.bucket)
    store.put("rejected/ring/dc1/a/CommitLog-7-1~00000001.log", b"x")
    store.put("conflicts/ring/dc1/a/CommitLog-7-1.json", b"{}")
    store.put("quarantine/ring/dc1/a/CommitLog-7-1/0000000001-2.bin", b"x")
    store.put("quarantine/ring/dc1/a/CommitLog-7-1/0000000001-2.json", b"{}")
    for day in "12":
        store.put(f"verify/ring/2026010{day}T000000Z.json", b"{}")
    places = found(config)
    assert {place: each.objects for place, each in places.items() if each.objects} == {
        "rejected/ring/": 1,
        "conflicts/ring/": 1,
        "quarantine/ring/": 1,
        "verify/ring/": 2,
    }
    assert "writetime conflicts" in places["rejected/ring/"].until


def test_until_when_is_what_the_configuration_says(tmp_path: Path) -> None:
    kafka = {"bootstrap.servers": "h:1", "topic.prefix": "p"}
    config = configured(tmp_path, kafka=kafka)
    open_store(config.bucket).put("audit/ring/20260101T000000Z.json", b"{}")
    places = found(config)
    assert places["audit/ring/"].until == "maintenance deletes them after 30 days"
    assert places["warehouse"].until == "maintenance deletes them after 3 days"
    assert {"topic p.shop.orders", "topic p.__quarantine"} <= set(places)


def test_what_services_keep_without_showing_it_is_listed_where_they_are_used(tmp_path: Path) -> None:
    def listed(**more: Any) -> set[str]:
        return set(found(configured(tmp_path, **more))) & {"uploads", "soft delete"}

    assert listed() == set()
    assert listed(state="s3+https://minio.example/lake/state") == {"uploads"}
    assert listed(files={"url": "gs://events"}) == {"soft delete"}
    assert listed(catalog={"uri": "jdbc:sqlite:c.db", "warehouse": "gs://lake"}, state="s3://lake") == {"uploads", "soft delete"}


def test_replays_are_listed_by_name(tmp_path: Path) -> None:
    config = configured(tmp_path)
    open_store(config.bucket).put(layout.batch_object("ring.replay.check", 1, "manifest"), b"{}")
    assert found(config)["replay ring.replay.check"].until == "you drop them"


def test_people_get_a_table(tmp_path: Path) -> None:
    places = [
        Unreached(place="verify/ring/", what="reports", until="tomorrow", objects=12),
        Unreached(place="backups", what="copies", until="ever"),
    ]
    lines = outcome_text(Outcome(table="shop.orders", done=True, batch=4, unreached=places)).splitlines()
    head = lines.index("Not reached:")
    assert [line.split() for line in lines[head + 1 : head + 4]] == [
        ["place", "objects", "what", "may", "be", "left", "until"],
        ["verify/ring/", "12", "reports", "tomorrow"],
        ["backups", "copies", "ever"],
    ]
    assert len({line.index(word) for line, word in zip(lines[head + 1 :], ("until", "tomorrow", "ever"), strict=False)}) == 1
