"""`python -m proof.complete [--sabotage RULE] [--sync 10] [--phase 40] [--json]`. Exit code: 0 nothing was said too
early and T kept up; under a sabotage, 0 if that was noticed.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from proof.complete import sabotage
from proof.complete.run import measure
from proof.ring.topology import Topology
from tools.console import progress_apart, say


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.complete", description="Hold every published T against the writes before it.")
    parser.add_argument("--sync", type=float, default=10, help="s between two syncs of the nodes (default: 10, as Cassandra's)")
    parser.add_argument("--phase", type=float, default=60, help="s for which each state of the ring lasts (default: 60)")
    parser.add_argument("--rate", type=int, default=20, help="writes a second (default: 20)")
    parser.add_argument("--datacenters", type=int, default=1, choices=(1, 2), help="three nodes in one, or two in each of two")
    parser.add_argument("--shipping", type=int, default=None, choices=(1, 2), help="how many of the datacenters ship (default: all)")
    parser.add_argument("--sabotage", default="", help=f"rules to break one after the other, or all: {', '.join(sabotage.RULES)}")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    rules = list(sabotage.RULES) if options.sabotage == "all" else [rule for rule in options.sabotage.split(",") if rule]
    if unknown := set(rules) - sabotage.RULES.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    topology = Topology(options.datacenters, options.shipping or options.datacenters)
    found: dict[str, Any] = {}
    with progress_apart(options.json):
        for rule in rules or [""]:
            with sabotage.broken(rule):
                found[rule] = measure(options.sync, options.phase, options.rate, topology)
            if rule:
                say(f"{rule}: {'noticed' if found[rule]['troubles'] else 'NOT NOTICED'}")
    if options.json:
        print(json.dumps(found))
    else:
        show(found)
    return int(any(bool(figures["troubles"]) != bool(rule) for rule, figures in found.items()))


def show(found: dict[str, Any]) -> None:
    table = Table("rule", "writes", "T's in tables", "T's in Kafka", "too early", "T behind: p50 s", "p95 s", "most s")
    for rule, figures in found.items():
        counts = [str(figures[name]) for name in ("writes", "tables", "topics", "early")]
        table.add_row(rule or "none", *counts, *(f"{figures['behind_s'][name]:.0f}" for name in ("p50", "p95", "most")))
    Console().print(table)
    for rule, figures in found.items():
        for trouble in figures["troubles"][:20]:
            Console().print(f"{rule or 'none'}: {trouble}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
