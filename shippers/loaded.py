"""Tables into which a node has loaded SSTables past its commit log, by the names and times in its data folders.

Strategy: `nodetool import`, `nodetool refresh` and snapshots that are put back move files into a table's folder, while
Cassandra itself writes there only what it flushes, compacts or receives. So a Data.db that was not there at the last look,
and was last written before it, was brought in from outside. Folders are listed, and no file is opened. The last look is
recorded in the state folder, so that what came while the shipper was down is found, too; without the record, the next
look is the first one and finds nothing.

Files that are copied (`nodetool import --copy-data`) are written anew and look like the node's own. What sstableloader
streams is in the commit log, unless the node has `cdc_on_repair_enabled: false` (`cdc_settings`). Knows neither CQL nor
the bucket.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from shippers import state_file
from writetime.config.node import NodeConfig

NOTE: Final = "loaded.json"
EVERY: Final = timedelta(minutes=1)
KEPT: Final = timedelta(days=30)
MOST: Final = 200
"""Tables in a status, the newest."""
_SLACK_NS: Final = 2 * 10**9
"""Clocks of file systems tick seldom."""
_TABLE: Final = re.compile(r"(\w{1,222})-([0-9a-f]{32})", re.ASCII)
_KEYSPACE: Final = re.compile(r"\w{1,222}", re.ASCII)
_OF_A_DATA_FOLDER: Final = "system"
_DATA: Final = "-Data.db"


class Loaded(NamedTuple):
    """A table, when files were found last, and how many in all."""

    keyspace: str
    table: str
    table_id: str
    at: str
    files: int


@dataclass(slots=True)
class Look:
    """What was seen: by folder, its mtime and its SSTables. `at_ns`: when the look began; 0: there was none."""

    at_ns: int = 0
    folders: dict[str, tuple[int, frozenset[str]]] = field(default_factory=dict)


class LoadedTables:
    """Looks at the data folders of a node when due."""

    def __init__(self, node: NodeConfig, log: Any) -> None:
        self._roots = node.data_folders
        self._note = node.state / NOTE
        self._log = log
        self._next = 0.0
        self._unreadable: str | None = None
        self._last, self.found = _recalled(self._note)

    def look_if_due(self) -> None:
        """List the folders once per `EVERY`. A failure is logged once, and delays nothing."""
        if not self._roots or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY.total_seconds()
        try:
            self._look()
            self._unreadable = None
        except OSError as error:
            if self._unreadable != str(error):
                self._log.info(
                    "not looking for loaded SSTables, data folder cannot be listed",
                    message=str(error),
                    hint="Let the shipper list it, or set `node.data_file_directories` (docs/shipper.md).",
                )
            self._unreadable = str(error)

    def _look(self) -> None:
        now = time.time_ns()
        look, fresh = Look(now), dict[tuple[str, str, str], int]()
        is_first = not 0 < self._last.at_ns <= now
        for keyspace, folder in (each for root in self._roots for each in _tables(root)):
            match = _TABLE.fullmatch(os.path.basename(folder))
            if match is None:
                continue
            look.folders[folder], new = self._listed(folder)
            if not is_first and new:
                key = (keyspace, match[1], match[2])
                fresh[key] = fresh.get(key, 0) + new
        if is_first:
            self._log.info("looking for loaded SSTables from now on", folders=len(look.folders))
        changed = look.folders != self._last.folders
        self._last = look
        for (keyspace, table, table_id), files in fresh.items():
            self._add(keyspace, table, table_id, files, datetime.fromtimestamp(now / 1e9, UTC))
        if changed or is_first:
            self._record()

    def _listed(self, folder: str) -> tuple[tuple[int, frozenset[str]], int]:
        """(the folder as seen now, how many of its SSTables were brought in since the last look)."""
        known = self._last.folders.get(folder)
        try:
            changed_ns = os.stat(folder).st_mtime_ns
            if known is not None and known[0] == changed_ns:
                return known, 0
            with os.scandir(folder) as entries:
                names = {entry.name: entry for entry in entries if entry.name.endswith(_DATA)}
                before = self._last.at_ns - _SLACK_NS
                unknown = (entry for name, entry in names.items() if known is None or name not in known[1])
                new = sum(_written_ns(entry) < before for entry in unknown)
        except FileNotFoundError:
            # The table was dropped meanwhile.
            return (0, frozenset()), 0
        return (changed_ns, frozenset(names)), new

    def _add(self, keyspace: str, table: str, table_id: str, files: int, now: datetime) -> None:
        self._log.error(
            "node loaded SSTables past its commit log",
            table=f"{keyspace}.{table}",
            files=files,
            hint="If it is captured, read it again: docs/runbook.md, `I bulk-loaded`.",
        )
        before = [each for each in self.found if each.table_id == table_id and each.keyspace == keyspace]
        others = [each for each in self.found if each not in before and now - datetime.fromisoformat(each.at) < KEPT]
        files += sum(each.files for each in before)
        self.found = [Loaded(keyspace, table, table_id, now.isoformat(timespec="seconds"), files), *others][:MOST]

    def _record(self) -> None:
        noted = {
            "at_ns": self._last.at_ns,
            "folders": {folder: [changed, sorted(names)] for folder, (changed, names) in self._last.folders.items()},
            "found": self.found,
        }
        try:
            state_file.replace(self._note, json.dumps(noted))
        except OSError as error:
            self._log.warning("failed to record the look at data folders", message=str(error), hint="Check node.state_dir.")


def _tables(root: Path) -> Iterator[tuple[str, str]]:
    """(keyspace, folder) of each table in a data folder, without those of Cassandra itself. OSError if it is none, or cannot
    be listed: of a disk that is not mounted, nothing has come or gone."""
    with os.scandir(root) as entries:
        keyspaces = sorted(entry.name for entry in entries if _is_folder(entry))
    if _OF_A_DATA_FOLDER not in keyspaces:
        raise OSError(f"{root} has no folder `{_OF_A_DATA_FOLDER}`: it is no data folder of Cassandra")
    for keyspace in filter(_KEYSPACE.fullmatch, keyspaces):
        if keyspace == _OF_A_DATA_FOLDER or keyspace.startswith(f"{_OF_A_DATA_FOLDER}_"):
            continue
        with os.scandir(root / keyspace) as entries:
            yield from sorted((keyspace, entry.path) for entry in entries if _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder, or a link to one: tables and keyspaces are moved to another disk by links, which Cassandra follows.
    OSError for a link to nothing."""
    return stat.S_ISDIR(entry.stat().st_mode) if entry.is_symlink() else entry.is_dir()


def _written_ns(entry: os.DirEntry[str]) -> int:
    return entry.stat(follow_symlinks=False).st_mtime_ns


def _recalled(note: Path) -> tuple[Look, list[Loaded]]:
    """The record of the last look and what was found; empty if missing or unreadable."""
    try:
        noted: Mapping[str, Any] = json.loads(note.read_text(encoding="utf-8"))
        folders = {str(folder): (int(changed), frozenset(map(str, names))) for folder, (changed, names) in noted["folders"].items()}
        found = [Loaded(*each) for each in noted["found"]]
        for each in found:
            datetime.fromisoformat(each.at)
        return Look(int(noted["at_ns"]), folders), found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Look(), []
