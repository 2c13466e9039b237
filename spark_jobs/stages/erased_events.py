"""Events of an erased key outside the tables: events too large for their topic (claims), events that were not sent, and
files of events.

Strategy: those of the current chain of batches are found by their places, (batch, ordinal), which the changes tables tell.
Of batches before a rebuild the changes tables tell nothing any more, while claims and files of that time stay, because
records refer to them. So of these the content is looked at: an event is the key's if the first values of its rows, in
any form that the configuration may have had, are the key's. What cannot be read, as Avro of a registry, is counted, and
reported as not reached. Finds and changes nothing but events; must not know what a key is."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final, Literal, get_args

import fastavro

from spark_jobs.sinks.avro_files import rewritten
from writetime.cassandra.types.types import CqlType
from writetime.errors import ObjectNotFound
from writetime.events.converters import AvroForm, Form, JsonForm, Numbers, Times
from writetime.pipeline import chains
from writetime.storage import layout
from writetime.storage.layout import table_folder
from writetime.storage.store import Store

_EPOCH: Final = date(1970, 1, 1)
Verdict = Literal["mine", "another's", "unknown"]


@dataclass(frozen=True)
class KeyInEvents:
    """The key as the first values of a row in events, in each form that they may have. It is sent to executors."""

    spelt: frozenset[str]
    columns: int

    @classmethod
    def of(cls, values: Mapping[str, Any], kinds: Mapping[str, CqlType]) -> KeyInEvents:
        """Of a key's values, as in the tables, with their types."""
        spelt = {_text([*form.fields(kinds)(values).values()]) for form in _forms()}
        return cls(frozenset(spelt), len(kinds))

    def is_in(self, event: Mapping[str, Any]) -> bool:
        rows = (event.get(part) for part in ("before", "after"))
        return any(_text([_value(each) for each in row.values()][: self.columns]) in self.spelt for row in rows if row)

    def verdict(self, content: bytes) -> Verdict:
        """Of an event in a claim."""
        try:
            event = json.loads(content)
            event = event["payload"] if "payload" in event and "schema" in event else event
            return "mine" if self.is_in(event) else "another's"
        except (ValueError, TypeError, AttributeError, KeyError):
            return "unknown"


def _forms() -> Iterator[Form]:
    for numbers in get_args(Numbers):
        yield AvroForm(numbers)
        yield from (JsonForm(numbers, times) for times in get_args(Times))


def _value(cell: Any) -> Any:
    """A column's value, also where it comes with its metadata (`events.shape: cells`)."""
    return cell["value"] if isinstance(cell, dict) and cell.keys() >= {"value", "set", "deletion_ts"} else cell


def _text(values: list[Any]) -> str:
    return json.dumps(values, default=_plain, sort_keys=True)


def _plain(value: Any) -> Any:
    """What JSON lacks; fastavro reads times as Python's."""
    if isinstance(value, datetime):
        return round((value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() * 1000)
    return (value - _EPOCH).days if isinstance(value, date) else value.hex() if isinstance(value, bytes) else str(value)


# --- of earlier chains


def first_batch(store: Store, cluster: str) -> int:
    """The first batch of the current chain: of earlier ones the changes tables tell nothing."""
    rebuild = chains.current(store, cluster)
    return 0 if rebuild is None else rebuild.chain.first


def former_claims(store: Store, cluster: str, topic: str) -> list[str]:
    """Objects with an event each, of batches before the current chain."""
    if not (first := first_batch(store, cluster)):
        return []
    prefixes = f"claims/{topic}/", f"{layout.unpublishable_prefix(cluster)}{topic}/"
    listed = (info.name for prefix in prefixes for info in store.names(prefix))
    return [name for name in listed if not name.endswith(".json") and _is_before(name, first)]


def former_files(store: Store, cluster: str, files: Store, keyspace: str, table: str) -> list[str]:
    """Files of events of batches before the current chain; `files`: their store."""
    if not (first := first_batch(store, cluster)):
        return []
    return [info.name for info in files.names(f"{table_folder(keyspace, table)}/") if _is_before(info.name, first)]


def _is_before(name: str, first: int) -> bool:
    batch = name.rpartition("/")[2].partition("-")[0]
    return batch.isascii() and batch.isdecimal() and int(batch) < first


def verdict_of(store: Store, name: str, key: KeyInEvents) -> Verdict:
    try:
        return key.verdict(store.read(name))
    except ObjectNotFound:
        return "another's"


def delete_claim(store: Store, name: str) -> None:
    """Delete an event's object, and the note of one that was not sent."""
    store.discard([name, *([f"{name.removesuffix('.bin')}.json"] if name.endswith(".bin") else [])])


def has_key(store: Store, name: str, key: KeyInEvents) -> bool:
    """Whether a file has events of the key."""
    return any(key.is_in(event) for event in _events(store, name))


def without_key(store: Store, name: str, key: KeyInEvents) -> None:
    """Write a file again without the key's events."""
    rewritten(store, name, lambda event: not key.is_in(event))


def _events(store: Store, name: str) -> Iterable[Any]:
    return fastavro.reader(io.BytesIO(store.read(name)))
