"""Replay a recording under one sabotage and write the mismatches to a file: `python -m proof.ring.broken KEPT
RULE FOLDER OUT STORE`.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import structlog

from proof.ring.pipeline import Kept
from proof.ring.replay import replay


def main(kept: str, rule: str, folder: str, out: str, store: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    outcome = replay(Kept(Path(kept)), Path(folder), rule=rule, store=store)
    Path(out).write_text(json.dumps([mismatch.place for mismatch in outcome.mismatches]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
