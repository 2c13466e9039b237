"""The command of the proof: a run, a replay, shrinking a failed run, or sabotages. Exit code 0 if everything
holds.

python -m proof.ring --seed 7 --ops 20000 [--keep FOLDER] [--json FILE] [--shrink]
python -m proof.ring --replay FOLDER [--sabotage RULE,RULE|all]
python -m proof.ring --sabotage RULE,RULE|all [--seed 7] [--ops 600]

Each with `--store s3`, too.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from proof import in_s3
from proof.harness.cassandra import VERSIONS, version_of
from proof.ring import operations, sabotage
from proof.ring.generate import Generator
from proof.ring.live import Live, Outcome, ring_of
from proof.ring.operations import Operation
from proof.ring.pipeline import Kept, Pipeline
from proof.ring.replay import replay
from proof.ring.schedule import Step, schedule, upgrade
from proof.ring.shrink import shrink
from proof.ring.tiny import Tiny
from proof.ring.topology import Topology
from proof.ring.wanted import Wanted
from tools.console import say, step
from tools.errors import ToolError

SABOTAGE_OPS = 600
_SHOWN = 25
_UNREADABLE = 2
"""Tables at quiet points that Cassandra itself may fail to read: then there is nothing to compare with, and
more would hide too much.
"""


class Part:
    """Some of a generator's operations. Schema and minima are the generator's; minima apply to whole runs
    only.
    """

    def __init__(self, generator: operations.Generator, wanted: Wanted) -> None:
        self.generator, self.wanted, self.kinds = generator, wanted, generator.kinds

    def schema(self) -> list[str]:
        return self.generator.schema()

    def minimum(self, ops: int) -> dict[str, int]:
        whole = self.wanted.prefix is None and not self.wanted.without
        return self.generator.minimum(ops) if whole else {}

    def __iter__(self) -> Any:
        for number, operation in enumerate(self.generator):
            if self.wanted.prefix is not None and number >= self.wanted.prefix:
                return
            # Omitted operations keep their place, so that all others happen at the same time as before.
            yield Operation(operation.kind, "") if operation.kind in self.wanted.without else operation


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    _quiet_logs()
    try:
        with tempfile.TemporaryDirectory(prefix="writetime-proof-") as temporary, in_s3.serving(options.store, Path(temporary)):
            return (_one if options.sabotage is None else _sabotaged)(options, Path(temporary))
    except (ToolError, ValueError) as error:
        say(str(error))
        return 2


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.ring", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="seed of operations and chaos")
    parser.add_argument("--ops", type=int, default=None, help="number of operations (2000; for sabotages 600)")
    parser.add_argument("--version", type=version_of, default=VERSIONS[0], help="version of Cassandra")
    parser.add_argument("--upgrade-to", type=version_of, help="upgrade the nodes to this version in the middle of the run")
    parser.add_argument("--prefix", type=int, help="run the first so many operations only")
    parser.add_argument("--without", default="", help="kinds of operations to leave out, by comma")
    parser.add_argument("--no-chaos", action="store_true", help="let all nodes stay up")
    parser.add_argument("--tiny", action="store_true", help="two small tables, for a quick look")
    parser.add_argument("--datacenters", type=int, default=1, choices=(1, 2), help="three nodes in one, or two in each of two")
    parser.add_argument("--shipping", type=int, default=None, choices=(1, 2), help="how many of the datacenters ship (default: all)")
    parser.add_argument("--store", choices=in_s3.STORES, default="folder", help=in_s3.HELP)
    parser.add_argument("--keep", type=Path, help="a new folder for all that a replay needs")
    parser.add_argument("--replay", type=Path, help="do again, without a ring, what was kept there")
    parser.add_argument("--sabotage", help="break this rule of the product, or several by comma, or each (`all`), and see that it shows")
    parser.add_argument("--shrink", action="store_true", help="after a failure look for the smallest run that fails")
    parser.add_argument("--json", type=Path, help="write the report there too")
    parser.add_argument("--folder", type=Path, help="a new folder for ring, bucket and warehouse, which stays; else a temporary one")
    return parser.parse_args(arguments)


# --- one run


def _one(options: argparse.Namespace, temporary: Path) -> int:
    folder = options.folder or temporary / "run"
    begun = time.monotonic()
    if options.replay is not None:
        kept = Kept(options.replay)
        outcome, about = replay(kept, folder, store=options.store), kept.about()
        report = _report(about, outcome, {}, time.monotonic() - begun)
    else:
        wanted = _wanted(options)
        outcome, minima = run(wanted, folder, options.keep)
        report = _report(_about(wanted), outcome, minima, time.monotonic() - begun)
    _show(report, outcome)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if report["good"]:
        return 0
    if options.shrink and options.replay is None:
        smallest = shrink(wanted, lambda smaller: _fails(smaller, temporary), frozenset(_generator(wanted).kinds))
        say(f"the smallest run that fails: {smallest.command}")
    return 1


def _wanted(options: argparse.Namespace) -> Wanted:
    without = frozenset(filter(None, options.without.split(",")))
    ops = options.ops or (2000 if options.sabotage is None else SABOTAGE_OPS)
    chaos = not options.no_chaos
    topology = Topology(options.datacenters, options.shipping or options.datacenters)
    return Wanted(
        options.seed, ops, options.version, options.prefix, without, chaos, options.tiny, topology, options.upgrade_to, options.store
    )


def run(wanted: Wanted, folder: Path, keep: Path | None = None) -> tuple[Outcome, dict[str, int]]:
    """Start a cluster under `folder`, run, and stop everything. The outcome, and the minima of operations by
    kind.
    """
    generator = Part(_generator(wanted), wanted)
    kept = None if keep is None else Kept(keep)
    if kept is not None:
        kept.begin(_about(wanted))
    topology = wanted.topology
    # Nodes that are upgraded to a new major version write what it writes already.
    ring = ring_of(topology, folder / "ring", wanted.version, compatibility="NONE" if wanted.upgrade_to else None)
    with Pipeline.create(folder / "site", kept=kept, datacenters=topology.shipped, store=wanted.store) as pipeline:
        with step(f"{len(topology.nodes)} nodes of Cassandra {wanted.version}, seed {wanted.seed}, {wanted.ops} operations"):
            ring.start()
        try:
            steps = _steps(wanted, generator)
            outcome = Live(ring, pipeline, generator, steps, wanted.seed, topology, upgrade_to=wanted.upgrade_to).run()
        finally:
            ring.close()
    return outcome, generator.minimum(wanted.ops)


def _steps(wanted: Wanted, generator: Part) -> list[Step]:
    steps = schedule(wanted.seed, wanted.ops, chaos=wanted.chaos, topology=wanted.topology, has_epochs=wanted.has_epochs)
    return steps if wanted.upgrade_to is None else sorted([*steps, *upgrade(list(generator))], key=lambda each: each.at)


def _generator(wanted: Wanted) -> operations.Generator:
    kind = Tiny if wanted.tiny else Generator
    return kind(wanted.seed, wanted.ops, wanted.topology.replication)


def _about(wanted: Wanted) -> dict[str, Any]:
    shipped = wanted.topology.shipped
    return {"seed": wanted.seed, "ops": wanted.ops, "version": wanted.version, "shipped": shipped, "command": wanted.command}


def _fails(wanted: Wanted, temporary: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=temporary) as folder:
        outcome, _ = run(wanted, Path(folder) / "run")
    say(f"{wanted.command}: {len(outcome.mismatches)} mismatches")
    return bool(outcome.mismatches)


# --- sabotages


def _sabotaged(options: argparse.Namespace, temporary: Path) -> int:
    """Replay one recording under each rule, each in its own process, because patches are permanent."""
    rules = _rules(options)
    if unknown := [rule for rule in rules if rule not in sabotage.RULES]:
        raise ValueError(f"`{unknown[0]}` is not a known rule. Known rules:\n{sabotage.listed()}")
    kept = options.replay
    if kept is None:
        kept = options.keep or temporary / "kept"
        outcome, _ = run(_wanted(options), temporary / "run", kept)
    else:
        outcome = replay(Kept(kept), temporary / "honest", store=options.store)
    honest = [mismatch.place for mismatch in outcome.mismatches]
    say(f"nothing broken: {len(honest)} mismatches")
    caught = {rule: noticed(rule, kept, temporary, set(honest), options.store) for rule in rules}
    for rule, how in caught.items():
        say(f"{'✓' if how else '✗'} {rule:20} {how or 'NOT CAUGHT'}")
    if options.json is not None:
        options.json.write_text(json.dumps({"honest": len(honest), "caught": caught}, indent=1) + "\n", encoding="utf-8")
    return int(bool(honest) or not all(caught.values()))


def _rules(options: argparse.Namespace) -> list[str]:
    """Those asked for; for `all` those that the recording's version of Cassandra can show."""
    if options.sabotage != "all":
        return list(options.sabotage.split(","))
    version = options.version if options.replay is None else Kept(options.replay).about()["version"]
    known = [rule for rule in sabotage.RULES if rule not in sabotage.BY_STORIES]
    return [rule for rule in known if rule not in sabotage.SINCE_6_0 or version >= "6"]


def noticed(rule: str, kept: Path, temporary: Path, honest: set[tuple[str, ...]], store: str = "folder") -> str:
    """How the rule was detected; "" if it was not."""
    with tempfile.TemporaryDirectory(dir=temporary) as folder:
        found = Path(folder) / "found.json"
        command = [sys.executable, "-m", "proof.ring.broken", str(kept), rule, str(Path(folder) / "site"), str(found), store]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ToolError(f"the sabotage {rule} could not be run:\n{done.stderr[-3000:]}")
        places = [tuple(place) for place in json.loads(found.read_text(encoding="utf-8"))]
    fresh = [place for place in places if place not in honest]
    counts = {check: sum(place[0] == check for place in fresh) for check, *_ in fresh}
    say(f"{rule}: {counts or 'nothing noticed'}")
    tables = sorted({place[1] for place in fresh})[:3]
    return ", ".join(f"{check} {count}" for check, count in sorted(counts.items())) + (f"  ({', '.join(tables)})" if tables else "")


# --- for people


def _report(about: dict[str, Any], outcome: Outcome, minima: dict[str, int], seconds: float) -> dict[str, Any]:
    short = {kind: least for kind, least in minima.items() if outcome.done[kind] < least}
    short |= {what: least for what, least in outcome.wanted.items() if outcome.steps[what] < least}
    return {
        **about,
        "good": not outcome.mismatches and not short and len(outcome.unreadable) <= _UNREADABLE,
        "operations": {kind: {"done": outcome.done[kind], "minimum": minima.get(kind, 0)} for kind in sorted({*outcome.done, *minima})},
        "not_acknowledged": dict(outcome.failed),
        "too_few": short,
        "chaos": dict(outcome.steps),
        "segments": outcome.segments,
        "batches": outcome.batches,
        "events": outcome.events,
        "quiet_points": len(outcome.answers),
        "as_of_comparisons": outcome.as_of_comparisons,
        "tables": sorted({table.label for answer in outcome.answers for table in answer.tables}),
        "rows": sum(len(table.rows) for table in outcome.answers[-1].tables) if outcome.answers else 0,
        "unreadable": outcome.unreadable,
        "mismatches": [mismatch.to_json() for mismatch in outcome.mismatches],
        "seconds": round(seconds),
    }


def _show(report: dict[str, Any], outcome: Outcome) -> None:
    for mismatch in outcome.mismatches[:_SHOWN]:
        say(str(mismatch))
    if len(outcome.mismatches) > _SHOWN:
        say(f"✗ … and {len(outcome.mismatches) - _SHOWN} more")
    for kind, counts in report["operations"].items():
        mark = "✗" if kind in report["too_few"] else " "
        say(f"{mark} {kind:32} {counts['done']:7}  (at least {counts['minimum']})")
    for what in sorted(report["too_few"].keys() - report["operations"].keys()):
        say(f"✗ {what}: {outcome.steps[what]} (at least {report['too_few'][what]})")
    for what in ("not_acknowledged", "chaos"):
        say(f"{what.replace('_', ' ')}: {', '.join(f'{name} {count}' for name, count in sorted(report[what].items())) or 'none'}")
    for place, why in report["unreadable"].items():
        say(f"✗ not compared, since Cassandra fails to read it: {place}: {why}")
    numbers = ("segments", "batches", "events", "quiet_points", "as_of_comparisons", "rows", "seconds")
    say(f"{sum(outcome.done.values())} operations, " + ", ".join(f"{report[name]} {name.replace('_', ' ')}" for name in numbers))
    short = f"{len(report['too_few'])} kinds too few"
    say(f"{len(report['tables'])} tables, {len(outcome.mismatches)} mismatches, {short}, seed {report['seed']}")
    if not report["good"]:
        say(f"again: {report['command']}")


def _quiet_logs() -> None:
    """Log only warnings and errors of shippers and batches."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.getLogger("cassandra").setLevel(logging.ERROR)
