"""Reads the node's CDC settings over CQL and logs their changes.

Strategy: one query reads `system_views.settings` with the names of all releases: 4.0 has `…_in_mb` and
`…_in_ms` and no unit in the value; from 4.1 on the value contains its unit, and the old names still exist.
3.11 has no such table, and the user may lack permission to read it: then the settings are unknown. Settings
change at run time (JMX) and at restarts, so they are read once a minute; each change that makes the node drop
writes is logged as an error. `writetime.cassandra.cdc_settings` knows what the settings mean.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from writetime.cassandra.cdc_settings import CdcSettings
from writetime.errors import ShipError

EVERY_SECONDS: Final = 60.0
_SIZE = re.compile(r"([0-9]{1,12})\s?(B|KiB|MiB|GiB)", re.ASCII)
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_DURATION = re.compile(r"([0-9]{1,12})(?:\.0)?\s?(ms|s|m|h|d)", re.ASCII)
_DURATIONS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MODE = re.compile(r"[a-z_]{1,32}")
_FLAGS = {"true": True, "false": False}
_PERIOD = {"periodic": "commitlog_sync_period", "group": "commitlog_sync_group_window"}
"""The setting with the sync interval, by the mode of `commitlog_sync`. `batch` syncs before it
acknowledges."""
_NAMES: Final = (
    "cdc_enabled",
    "cdc_block_writes",
    "cdc_on_repair_enabled",
    "cdc_total_space",
    "cdc_total_space_in_mb",
    "commitlog_sync",
    "commitlog_sync_period",
    "commitlog_sync_period_in_ms",
    "commitlog_sync_group_window",
    "commitlog_sync_group_window_in_ms",
    "periodic_commitlog_sync_lag_block",
    "periodic_commitlog_sync_lag_block_in_ms",
)


def take_settings(session: Any) -> CdcSettings:
    """Query the settings; all unknown if the table is missing or not readable. Raises other driver errors."""
    from cassandra import InvalidRequest, Unauthorized
    from cassandra.encoder import ValueSequence

    try:
        rows = session.execute("SELECT name, value FROM system_views.settings WHERE name IN %s", (ValueSequence(_NAMES),))
    except (InvalidRequest, Unauthorized):
        return CdcSettings()
    return parse_settings({name: value for name, value in rows if value is not None})


def parse_settings(rows: Mapping[str, str]) -> CdcSettings:
    """Parse settings by Cassandra's name and text. A text that cannot be parsed is unknown."""
    mode = rows.get("commitlog_sync", "").lower()
    period = _PERIOD.get(mode)
    return CdcSettings(
        cdc_enabled=_FLAGS.get(rows.get("cdc_enabled", "").lower()),
        cdc_block_writes=_FLAGS.get(rows.get("cdc_block_writes", "").lower()),
        cdc_on_repair_enabled=_FLAGS.get(rows.get("cdc_on_repair_enabled", "").lower()),
        cdc_total_space=size_of(_with_unit(rows, "cdc_total_space", "_in_mb", "MiB")),
        commitlog_sync=mode if _MODE.fullmatch(mode) else None,
        commitlog_sync_ms=duration_of(_with_unit(rows, period, "_in_ms", "ms")) if period else None,
        commitlog_sync_lag_ms=duration_of(_with_unit(rows, "periodic_commitlog_sync_lag_block", "_in_ms", "ms")),
    )


def size_of(text: str) -> int | None:
    """Bytes of a size as Cassandra writes it (`4096MiB`); None if invalid, or 0, which means the default."""
    match = _SIZE.fullmatch(text)
    return int(match[1]) * _SIZES[match[2]] or None if match else None


def duration_of(text: str) -> int | None:
    """Milliseconds of a duration as Cassandra writes it (`10s`, `1000ms`); None if invalid."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _DURATIONS[match[2]] if match else None


def _with_unit(rows: Mapping[str, str], name: str, old: str, unit: str) -> str:
    """The value of a setting with its unit, under its new or old name; "" if it has neither."""
    if name in rows:
        return rows[name]
    return f"{rows[name + old]}{unit}" if name + old in rows else ""


class SettingsMonitor:
    """Queries the settings when due, keeps the last answer, and logs changes."""

    def __init__(self, log: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._next = clock()
        self.known: CdcSettings | None = None
        """The node's last answer; None before the first."""

    def forget(self) -> None:
        """Discard the answer: the connection leads to another node now."""
        self.known, self._next = None, self._clock()

    def refresh(self, ask: Callable[[], CdcSettings]) -> None:
        """Query if due: each time until the node has answered, from then on once per `EVERY_SECONDS`.

        `ask` queries the node and raises ShipError while it is unavailable.
        """
        if self.known is not None and self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_SECONDS
        try:
            found = ask()
        except ShipError as error:
            self._log.warning("failed to query the node's CDC settings", **error.as_dict())
            return
        if found != self.known:
            self._report(self.known or CdcSettings(), found)
            self.known = found

    def _report(self, before: CdcSettings, now: CdcSettings) -> None:
        unsafe, was_unsafe = ({each.name: each for each in settings.unsafe()} for settings in (now, before))
        for name, setting in unsafe.items():
            if name not in was_unsafe:
                about = {"setting": name, "value": setting.value, "consequence": setting.consequence, "hint": setting.hint}
                self._log.error("node drops captured writes without an error", **about)
        for name in was_unsafe.keys() - unsafe.keys():
            self._log.info("node no longer drops captured writes", setting=name)
        self._log.info("node CDC settings", **now.to_document())
