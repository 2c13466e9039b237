"""The output of `writetime ship --status` and `--dry-run`: one document each, and a table of it. Read-only.

Strategy: both scan the folders themselves and need no running shipper; `--status` adds the shipper's last
record (`metrics.note`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from shippers import metrics, node_identity, upload
from shippers.folder import Found, State
from shippers.scan import OURS, View
from shippers.write_times import moment
from writetime.config.pipeline import PipelineConfig
from writetime.errors import ShipError, WritetimeError
from writetime.storage.layout import SegmentRef
from writetime.storage.store import Store


def status(config: PipelineConfig) -> dict[str, Any]:
    """Space, lag, files, and the shipper's last scan (None if there was none). Sizes in bytes, times in s
    since the epoch.
    """
    wanted = node_identity.require_node(config)
    last = metrics.noted(wanted.state / metrics.NOTE)
    view = View.of(wanted, wanted.ship.cdc_total_space or last.get("limit"))
    sight, aside = view.sight, [item for _, item in view.aside]
    return {
        "at": sight.at,
        "cdc_raw": str(wanted.cdc_raw),
        "store": config.bucket,
        "level": sight.level,
        "used": sight.used,
        "limit": sight.limit,
        "share": sight.share,
        "disk_free": sight.free,
        "lag_seconds": sight.lag,
        "lag_bytes": sight.to_ship_bytes,
        "files": [_file(item, where) for where, items in (("cdc_raw", view.here), ("aside", aside)) for item in items],
        "shipper": {"pid": last.get("pid"), "looked_at": last.get("at"), "failed": last.get("failed", []), "tails": last.get("tails", [])}
        if last
        else None,
    }


def dry_run(config: PipelineConfig, store: Store, link: node_identity.Link | None) -> list[dict[str, Any]]:
    """What a round would do with each file: `action`, and `object` for a segment. After an error, `action`
    contains it.
    """
    wanted = node_identity.require_node(config)
    view = View.of(wanted, wanted.ship.cdc_total_space)
    answer = _answer(link)
    recalled = node_identity.recall(node_identity.notes_file(wanted))
    facts = node_identity.merge(config, answer, recalled, unanswered=link is not None and not answer)
    plans = []
    for folder, item in [*view.aside, *((wanted.cdc_raw, item) for item in view.here)]:
        ref = SegmentRef(facts.name, item.segment) if item.segment is not None else None
        where = "cdc_raw" if folder == wanted.cdc_raw else "aside"
        plans.append(_file(item, where) | {"object": ref and ref.incoming, "action": _action(store, folder, item, ref)})
    return plans


def status_table(document: dict[str, Any]) -> Group:
    """The document as terminal output."""
    lines = [
        f"{document['cdc_raw']} to {document['store']}",
        f"space {document['level']}: {_size(document['used'])} of {_size(document['limit'])} in use ({document['share']:.0%} of the "
        f"usable space), {_size(document['disk_free'])} free on the disk",
        f"to ship: {_size(document['lag_bytes'])}, the oldest for {_age(document['lag_seconds'])}",
    ]
    shipper = document["shipper"]
    if shipper is None:
        lines.append("no shipper has run here yet")
    else:
        lines.append(f"last scan by process {shipper['pid']}, {_age(max(0.0, document['at'] - shipper['looked_at']))} ago")
        lines += [f"  failed: {error['message']} ({error['object']})" for error in shipper["failed"]]
        lines += [
            f"  {tail['segment']} grows: {_size(tail['shipped'] or 0)} of {_size(tail['synced'])} shipped" for tail in shipper["tails"]
        ]
    return Group(*map(Text, lines), _table(document["files"]))


def dry_run_table(plans: list[dict[str, Any]]) -> Table:
    """The document as terminal output."""
    return _table(plans)


def _action(store: Store, folder: Path, item: Found, ref: SegmentRef | None) -> str:
    if item.state is State.LEFTOVER_IDX:
        return "delete: its log was shipped"
    if item.state not in OURS or ref is None:
        return item.reason or "wait"
    try:
        outcome = upload.foresee(store, ref, folder)
    except WritetimeError as error:
        return f"keep: {error}"
    if outcome is upload.Outcome.ALREADY_THERE:
        return "delete: already there, the same bytes"
    return "upload, verify, delete" if outcome is upload.Outcome.UPLOADED else "upload as a conflict, verify, delete: other bytes are there"


def _answer(link: node_identity.Link | None) -> dict[str, Any]:
    try:
        return {} if link is None else link.facts()
    except ShipError:
        # As in a round: configuration and recorded identity may suffice; otherwise `merge` raises.
        return {}


def _file(item: Found, where: str) -> dict[str, Any]:
    return {"name": item.name, "state": item.state.value, "where": where, "size": item.size, "last_write": item.mtime}


def _table(files: list[dict[str, Any]]) -> Table:
    planned = any("action" in file for file in files)
    table = Table("file", "state", "where", "size", "last write (UTC)", *(["would"] if planned else []))
    for file in files:
        written = f"{moment(file['last_write']):%Y-%m-%d %H:%M:%S}" if file["last_write"] else ""
        cells = [file["name"], file["state"], file["where"], _size(file["size"]), written, *([file["action"]] if planned else [])]
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _age(seconds: float) -> str:
    for unit, length in (("s", 60), ("min", 60), ("h", 24)):
        if seconds < 2 * length:
            return f"{seconds:.0f} {unit}"
        seconds /= length
    return f"{seconds:.0f} d"
