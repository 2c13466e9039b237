"""The judge measures every figure by the code of a full run, on a small recorded workload: figures mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from benchmarks import judge, judge_page, shipping, workloads
from benchmarks.figures import KEYS, Found, Peer
from tools import ROOT
from writetime.cassandra.commitlog.encode import encode_segment
from writetime.cassandra.commitlog.segment import scan

MACHINE = {"cpu": "a <cpu>", "cores": 2, "memory_mb": 1000}
ABOUT: dict[str, Any] = {"version": "1", "at": "now", "quick": False, "load": 0.5, "seconds": 60, "machine": MACHINE}


def found() -> Found:
    values = {"whole_mb_s_per_core": [14.0, 16.0, 20.0], "small_batch_s": [4.0], "whole_mb_s_per_core.wide": [7.0]}
    peer = Peer("a peer & co", "this", "that", {"mb_s_per_core": 3.0})
    steps = {"ingest": {"seconds": 1.0, "cpu": 2.0, "broker": 3.0}}
    return Found(values, {"avro_vs_json": "no registry"}, {"small_batch_s": "a note"}, [peer], steps)


def test_a_figure_is_a_median_with_its_spread_unit_and_goal() -> None:
    document = found().document(ABOUT)
    figure = document["whole_mb_s_per_core"]
    assert (figure["median"], figure["spread"], figure["passes"], figure["unit"]) == (16.0, [14.0, 20.0], 3, "MB/s a core")
    assert (figure["goal"], figure["reached"]) == ({"at_least": 15, "aim": 30}, True)
    small = document["small_batch_s"]
    assert (small["goal"], small["reached"], small["note"]) == ({"at_most": 3, "aim": 1}, False, "a note")


def test_each_key_has_a_figure_or_a_reason() -> None:
    document = found().document(ABOUT)
    assert {*document["left_out"], *found().values} == set(KEYS)
    assert document["left_out"]["avro_vs_json"] == "no registry"
    assert {key for part in (*judge.WITH_SPARK, *judge.ALONE) for key in part.keys} == set(KEYS)


@pytest.mark.parametrize(("wide", "named"), [(7.9, ["wide"]), (8.0, [])])
def test_a_table_below_half_of_orders_is_named(wide: float, named: list[str]) -> None:
    some = found()
    some.values["whole_mb_s_per_core.wide"] = [wide]
    document = some.document(ABOUT)
    assert document["below_half_of_orders"] == named
    assert ("Below half" in judge_page.page(document)) == bool(named)


def test_the_page_has_every_figure_and_escapes_what_it_shows() -> None:
    page = judge_page.page(found().document(ABOUT))
    assert all(f">{name}<" in page for name in KEYS)
    assert "a &lt;cpu&gt;" in page
    assert "a peer &amp; co" in page
    assert "<script" not in page


def test_a_part_that_fails_leaves_its_keys_out_and_the_others_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bench = judge.Bench(judge.QUICK, 2, tmp_path, Found())

    def fail(bench: judge.Bench) -> None:
        bench.found.values["cold_start_s"] = [1.0]
        raise ValueError("no luck\nat all")

    def work(bench: judge.Bench) -> None:
        bench.found.values["avro_vs_json"] = [2.0]

    parts = [judge.Part("fails", ("cold_start_s", "decode_vs_cassandra"), fail), judge.Part("works", ("avro_vs_json",), work)]
    written: list[int] = []
    judge._run_parts(bench, parts, lambda: written.append(len(bench.found.values)))
    assert written == [1, 2]
    assert bench.found.left_out == {"decode_vs_cassandra": "ValueError: no luck"}
    assert bench.found.values == {"cold_start_s": [1.0], "avro_vs_json": [2.0]}
    assert "no luck" in capfd.readouterr().err


def test_a_workload_has_its_table_s_mutations_after_the_ddl() -> None:
    ids = {"a": UUID(int=1), "b": UUID(int=2)}
    ddl, first, second = (b"\x01" + UUID(int=number).bytes + b"x" for number in (9, 1, 2))
    assert workloads._of_table(iter([ddl, second, first, ddl, first]), ids, "a") == ([ddl], [first, first])


def test_sections_of_a_segment_end_where_the_next_one_begins() -> None:
    bodies = [b"x" * 100] * 10
    segment = encode_segment(5, 7, bodies, per_section=3, size=4096)
    ends = list(shipping.ends_of(segment))
    assert len(ends) == 4
    assert [len(scan(segment[:end], name="CommitLog-7-5.log").frames) for end in ends] == [3, 6, 9, 10]


def quick(out: Path, *options: str) -> dict[str, Any]:
    """The document of a quick run, which is printed and written."""
    command = [sys.executable, "-m", "benchmarks.judge", "--quick", "--json", "--out", str(out), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout.splitlines()[-1])
    assert json.loads((out / "bench.json").read_text())["left_out"] == document["left_out"]
    assert "mean nothing" in (out / "bench.html").read_text()
    return dict(document)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_quick_run_measures_the_whole_path(tmp_path: Path) -> None:
    document = quick(tmp_path, "--only", "whole")
    (part,) = [part for part in judge.WITH_SPARK if part.name == "whole"]
    assert document["left_out"].keys() == set(KEYS) - set(part.keys)
    assert all(document[key]["median"] > 0 for key in part.keys)
    assert document["steps"].keys() == {"ingest", "archive", "publish", "maintain"}


@pytest.mark.thorough
@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_quick_run_measures_every_figure_that_needs_no_node(tmp_path: Path) -> None:
    document = quick(tmp_path)
    assert document["left_out"].keys() == {"events_vs_debezium"}, document["left_out"]
    assert all(document[key]["median"] > 0 for key in KEYS if key != "events_vs_debezium")
    assert len(document["peers"]) == 3
