"""Which YAMLs a value of WRITETIME_CONFIG names, and what becomes of those that are wrong or claim the same
thing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from writetime.config import installation
from writetime.config.installation import files, owners_of, pipelines
from writetime.config.pipeline import PipelineConfig


def write(folder: Path, file: str, name: str, *, cluster: str = "", bucket: str = "", more: str = "") -> Path:
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f"pipeline: {name}\ncluster: {{name: {cluster or name}, datacenters: [dc1]}}\nbucket: {bucket or 'gs://' + name}\n{more}"
    path.write_text(text, encoding="utf-8")
    return path


def test_nothing_is_named() -> None:
    for setting in (None, "", os.pathsep):
        found = pipelines(setting)
        assert not found.found
        assert not found.several
    assert pipelines(None).problems == ()


def test_one_file_is_the_only_one(tmp_path: Path) -> None:
    path = write(tmp_path, "orders.yaml", "orders")
    found = pipelines(str(path))
    assert [(each.name, each.path) for each in found.found] == [("orders", path)]
    assert not found.several
    assert found.problems == ()


def test_a_list_and_a_folder_are_several_also_while_they_hold_but_one(tmp_path: Path) -> None:
    one, two = write(tmp_path, "one.yaml", "orders"), write(tmp_path, "more/two.yml", "bets")
    (tmp_path / "more" / "notes.txt").write_text("not YAML", encoding="utf-8")
    (tmp_path / "more" / "old.yaml").mkdir()
    both = pipelines(f"{one}{os.pathsep}{tmp_path / 'more'}{os.pathsep}{one}")
    assert [each.path for each in both.found] == [one, two]
    assert both.several
    folder = pipelines(str(tmp_path / "more"))
    assert [each.name for each in folder.found] == ["bets"]
    assert folder.several


def test_one_that_is_wrong_takes_nothing_from_the_others(tmp_path: Path) -> None:
    good = write(tmp_path, "a.yaml", "orders")
    write(tmp_path, "b.yaml", "bets", more="nodes: {}\n")
    write(tmp_path, "c.yaml", "UPPER")
    found = pipelines(f"{tmp_path}{os.pathsep}{tmp_path / 'lost.yaml'}")
    assert [each.path for each in found.found] == [good]
    told = [str(problem) for problem in found.problems]
    assert len(told) == 3
    assert "b.yaml: `nodes`: is not a known key" in told[0]
    assert "c.yaml: `pipeline`" in told[1]
    assert "lost.yaml: cannot be read" in told[2]


@pytest.mark.advice("Add a *.yaml file, or correct WRITETIME_CONFIG.")
def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    (problem,) = pipelines(str(tmp_path)).problems
    assert "no pipeline file found" in str(problem)
    write(tmp_path, "orders.yaml", "orders")
    assert pipelines(str(tmp_path)).problems == ()


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({"name": "orders"}, {"name": "orders", "cluster": "other"}, "the name `orders`"),
        (
            {"name": "a", "cluster": "Ring", "bucket": "gs://x"},
            {"name": "b", "cluster": "Ring", "bucket": "gs://x/"},
            "the cluster `Ring` in gs://x",
        ),
        (
            {"name": "a", "more": "kafka: {bootstrap.servers: 'k:1', topic.prefix: p}\n"},
            {"name": "b", "more": "kafka: {bootstrap.servers: 'k:1', topic.prefix: p}\n"},
            "the topic prefix `p` at k:1",
        ),
    ],
    ids=["name", "ring", "prefix"],
)
@pytest.mark.advice("None of them runs until each has its own.")
def test_of_two_that_claim_the_same_neither_runs(tmp_path: Path, first: dict[str, str], second: dict[str, str], told: str) -> None:
    paths = write(tmp_path, "1.yaml", **first), write(tmp_path, "2.yaml", **second)
    write(tmp_path, "3.yaml", "third")
    found = pipelines(str(tmp_path))
    assert [each.name for each in found.found] == ["third"]
    assert len(found.problems) == 2
    for problem, mine, other in zip(found.problems, paths, reversed(paths), strict=True):
        assert problem.error.obj == str(mine)
        assert told in str(problem)
        assert f"is also used by {other}" in str(problem)
    write(tmp_path, "2.yaml", "second")
    assert sorted(each.name for each in pipelines(str(tmp_path)).found) == sorted([first["name"], "second", "third"])


def test_rings_of_one_name_in_two_buckets_are_two(tmp_path: Path) -> None:
    write(tmp_path, "1.yaml", "a", cluster="Test Cluster", bucket="gs://x")
    write(tmp_path, "2.yaml", "b", cluster="Test Cluster", bucket="gs://x/b")
    assert len(pipelines(str(tmp_path)).found) == 2


def test_files_are_named_whether_they_are_there_or_not(tmp_path: Path) -> None:
    assert files(str(tmp_path / "lost.yaml")) == (tmp_path / "lost.yaml",)


UNREADABLE = {
    "not UTF-8": b"pipeline: bad # gr\xf6sse\n",
    "an impossible date": b"pipeline: bad\nsnapshot: {mode: 2026-02-30}\n",
    "an alias that contains itself": b"pipeline: &a\n  x: *a\n",
    "nested too deeply": b"pipeline: " + b"[" * 5000,
    "no YAML": b"pipeline: [\n",
    "a NUL": b"pipeline: a\0\n",
    "no mapping": b"7\n",
    "a key that is a list": b"[a, b]: 7\n",
    "a value of another type": b"pipeline: !!binary AAAA\nbucket: !!set {a}\n",
    "a tag that nobody knows": b"pipeline: !own x\n",
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_file_that_cannot_be_read_takes_only_its_own_pipeline_away(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, "orders.yaml", "orders")
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(content)
    found = pipelines(str(tmp_path))
    assert [each.name for each in found.found] == ["orders"]
    (problem,) = found.problems
    assert str(bad) in str(problem)


def test_an_error_that_nobody_thought_of_takes_only_its_own_pipeline_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = write(tmp_path, "orders.yaml", "orders"), write(tmp_path, "bets.yaml", "bets")
    load = installation.load

    def raises(path: Path) -> PipelineConfig:
        if path == bad:
            raise MemoryError("no room")
        return load(path)

    monkeypatch.setattr(installation, "load", raises)
    found = pipelines(str(tmp_path))
    assert [each.path for each in found.found] == [good]
    assert [f"{bad}: MemoryError: no room" in str(problem) for problem in found.problems] == [True]


def test_a_folder_that_cannot_be_listed_takes_no_other_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, closed = write(tmp_path, "orders.yaml", "orders"), tmp_path / "closed"
    closed.mkdir()
    iterdir = Path.iterdir

    def refused(path: Path) -> Iterator[Path]:
        if path == closed:
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    found = pipelines(f"{closed}{os.pathsep}{good}")
    assert [each.path for each in found.found] == [good]
    assert str(closed) in str(found.problems[0])


OWNERS = {
    "its own name": ("orders.yaml", "pipeline: orders\nx: [\n", {"orders"}),
    "another name than its file's": ("payroll.yaml", "pipeline: orders\nnodes: {}\n", {"orders", "payroll"}),
    "a file's name that no pipeline can have": ("01-orders.yaml", "pipeline: orders\nnodes: {}\n", {"orders"}),
    "a name that no pipeline can have": ("orders.yaml", "pipeline: Orders\n", {"orders"}),
    "neither name": ("01-x.yaml", "pipeline: Orders\n", {""}),
    "no name": ("orders.yaml", "[\n", {"orders"}),
    "two names": ("orders.yaml", "pipeline: bets\npipeline: payroll\n", {"bets", "orders", "payroll"}),
    "a flow mapping": ("orders.yaml", "{'pipeline': \"payroll\", x: [}", {"orders", "payroll"}),
    "a variable": ("orders.yaml", "pipeline: ${THE_NAME}_eu\nnodes: {}\n", {"orders", "payroll_eu"}),
    "a variable that is not set": ("orders.yaml", "pipeline: ${UNSET_NAME}\n", {"", "orders"}),
    "an alias": ("orders.yaml", "x: &x payroll\npipeline: *x\n", {"", "orders"}),
    "not UTF-8": ("orders.yaml", b"pipeline: payroll # gr\xf6sse\n", {"orders", "payroll"}),
    "a folder": ("orders.yaml", None, {"orders"}),
}


@pytest.mark.parametrize(("file", "content", "owners"), OWNERS.values(), ids=OWNERS.keys())
def test_whose_a_file_is_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: str | bytes | None, owners: set[str]
) -> None:
    """All pipelines that its text could be about: who may not see one of them is not shown it."""
    monkeypatch.setenv("THE_NAME", "payroll")
    path = tmp_path / file
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        path.mkdir()
    assert owners_of(path) == owners


def test_a_clash_names_the_other_file_only_to_who_may_see_both(tmp_path: Path) -> None:
    write(tmp_path, "orders.yaml", "orders", cluster="Ring", bucket="gs://x")
    write(tmp_path, "payroll.yaml", "payroll", cluster="Ring", bucket="gs://x")
    told = {
        who: [problem.text(lambda name, who=who: name in who) for problem in pipelines(str(tmp_path)).problems]
        for who in (("orders",), ("orders", "payroll"), ())
    }
    mine, theirs = told["orders",]
    assert mine is not None
    assert theirs is None
    assert "orders.yaml: the cluster `Ring` in gs://x is also used by another pipeline" in mine
    assert "payroll" not in mine
    assert [problem is not None and "payroll.yaml" in problem for problem in told["orders", "payroll"]] == [True, True]
    assert told[()] == [None, None]
