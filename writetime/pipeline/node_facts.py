"""The nodes' status documents (`nodes/`), as planning, the audit and the status read them. Does not know
Spark.

A shipper writes a status from time to time and never overwrites one: the newest counts, by the store's
clock.

A process remembers what it has read. Of many nodes, planning also keeps the documents together in one object, so
that the next process reads that and what is new. It is a copy: without it each status is read by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from writetime import untrusted
from writetime.cassandra.cdc_settings import CdcSettings
from writetime.cassandra.token_ring import MURMUR3
from writetime.errors import ObjectNotFound
from writetime.storage import layout, untrusted_objects
from writetime.storage.concurrency import at_once
from writetime.storage.store import Listed, Store, discard_at_once
from writetime.untrusted import Untrusted

_TOKENS: Final = 1 << 16
_OLDER: Final = 40
"""Older statuses per node that planning lets lie: ten minutes of a shipper with tails."""
_FEW: Final = 4
"""Those that a batch lets lie."""
_DELETED: Final = 1000
"""Maximum number that one planning deletes: a thousand nodes leave 40,000 in ten minutes."""
_OUTDATED: Final = timedelta(minutes=2)
_MEMBERS: Final = 1 << 14
_UNSYNCED_MS: Final = 86_400_000
_PARSED: Final = 4096
"""Statuses that a process remembers: they are never overwritten, and a session reads them every few
seconds."""
_MANY: Final = 100
"""New statuses from which on they are looked for in the one object, and kept in it."""
_LOADED: Final = 1000
"""Tables that one status may name."""
_NAME: Final = 222
"""Characters of a keyspace's or table's name."""
_parsed: dict[tuple[str, str, int, datetime], NodeFacts] = {}


@dataclass(frozen=True, slots=True)
class NodeSpace:
    """The last report of a node's space (`level`: ok, warn or alarm; `share` of the limit in use; bytes) and
    settings, as far as known."""

    at: datetime
    level: str
    share: float
    used: int
    limit: int
    disk_free: int
    settings: CdcSettings = field(default_factory=CdcSettings)


@dataclass(frozen=True, slots=True)
class SignedOff:
    """A shipper's statement that everything its node had synced at `at` is in the bucket. `at` is by the
    node's clock, `written` by the store's, when it received the statement. `unsynced`: how much later than
    its place in the log a mutation may have been synced. `members`: the nodes of the shipping datacenters
    that belong to the ring, by their path. `datacenters`: those that ship, by their path."""

    at: datetime
    written: datetime
    unsynced: timedelta
    members: frozenset[str]
    datacenters: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A table into which a node has loaded SSTables past its commit log: when they were found last, and how many in all."""

    keyspace: str
    table: str
    at: datetime
    files: int

    @property
    def full_name(self) -> str:
        return f"{self.keyspace}.{self.table}"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node's status and its object. `tokens`: of Murmur3Partitioner only; `partitioner`: "" if the shipper does
    not report it. `rejected`: why its content is not used; then only the name shows that
    the node exists."""

    node: layout.NodeName
    object: str
    address: str = ""
    rack: str = ""
    release: str = ""
    partitioner: str = ""
    tokens: tuple[int, ...] = ()
    space: NodeSpace | None = None
    signed_off: SignedOff | None = None
    loaded: tuple[Loaded, ...] = ()
    rejected: str | None = None


def read_facts(store: Store, cluster: str, *, tidy: bool = False) -> list[NodeFacts]:
    """The newest status of every node, by node name. `tidy`: delete some of the others where there are very many:
    batches do it (`delete_outdated`), but there may be none for days."""
    newest, older = _statuses(store, cluster)
    if tidy and len(older) > _OLDER * len(newest):
        _delete_outdated(store, newest, older[:_DELETED])
    wanted = sorted(newest.items())
    unread = [info for _, info in wanted if _key(store, info) not in _parsed]
    together = _Together(store, cluster) if len(unread) > _MANY else None
    found = at_once(lambda each: _facts(store, *each, together), wanted)
    if tidy and together is not None:
        together.keep(found)
    return found


class _Together:
    """The documents of statuses that are kept in one object. Those with a sign-off are not: each is replaced within
    seconds."""

    def __init__(self, store: Store, cluster: str) -> None:
        self._store, self._name = store, layout.statuses(cluster)
        self._known: dict[str, dict[str, Any]] = {}
        self._new: dict[str, dict[str, Any]] = {}
        with suppress(ObjectNotFound):
            self._known = json.loads(store.read(self._name))["statuses"]

    def document(self, info: Listed) -> dict[str, Any]:
        """The status in the object. Raises Untrusted."""
        if (known := self._known.get(info.name)) is not None and known["identity"] == _identity(info):
            return dict(known["status"])
        document = untrusted_objects.read_object(self._store, info)
        if document.get("signed_off") is None:
            # One thread adds at a time.
            self._new[info.name] = {"identity": _identity(info), "status": document}
        return document

    def keep(self, found: Iterable[NodeFacts]) -> None:
        """Replace the object, if many were not in it. Of two planners that do so at once, one is lost."""
        if len(self._new) <= _MANY:
            return
        newest = {each.object for each in found}
        kept = {name: each for name, each in sorted({**self._known, **self._new}.items()) if name in newest}
        self._store.put(self._name, json.dumps({"statuses": kept}).encode())


def _identity(info: Listed) -> list[Any]:
    """What tells two objects of one name apart in a listing."""
    return [info.size, info.created.isoformat()]


def delete_outdated(store: Store, cluster: str) -> None:
    """Delete the statuses that newer ones have replaced. A shipper with tails writes four a minute, and each planning
    lists them all."""
    newest, older = _statuses(store, cluster)
    if len(older) > _FEW * len(newest):
        _delete_outdated(store, newest, older)


def _statuses(store: Store, cluster: str) -> tuple[dict[layout.NodeName, Listed], list[Listed]]:
    """The newest status of each node, and all others."""
    newest: dict[layout.NodeName, Listed] = {}
    older: list[Listed] = []
    for info in store.names(layout.nodes_prefix(cluster)):
        node = layout.NodeName.of_facts(info.name)
        if node is None:
            continue
        if (known := newest.get(node)) is None:
            newest[node] = info
            continue
        older.append(min(known, info, key=_order))
        newest[node] = max(known, info, key=_order)
    return newest, older


def _delete_outdated(store: Store, newest: Mapping[layout.NodeName, Listed], older: Iterable[Listed]) -> None:
    """Delete those of `older` that have been replaced for a while: another reader may be about to read what it has
    just listed."""
    before = max(map(_order, newest.values()))[0] - _OUTDATED
    # A status is never replaced.
    discard_at_once(store, (each.name for each in older if each.created < before))


def _order(info: Listed) -> tuple[datetime, str]:
    return info.created, info.name


def _key(store: Store, info: Listed) -> tuple[str, str, int, datetime]:
    return store.url, info.name, info.info.generation if info.info else info.size, info.created


def _facts(store: Store, node: layout.NodeName, info: Listed, together: _Together | None) -> NodeFacts:
    key = _key(store, info)
    if (known := _parsed.get(key)) is not None:
        return known
    if len(_parsed) >= _PARSED:
        _parsed.clear()
    found = _parsed[key] = _read(store, node, info, together)
    return found


def _read(store: Store, node: layout.NodeName, info: Listed, together: _Together | None) -> NodeFacts:
    try:
        document = untrusted_objects.read_object(store, info) if together is None else together.document(info)
        host_id = untrusted.text(document.get("host_id"), "host_id")
        if host_id not in ("", node.host_id):
            raise Untrusted("host_id belongs to another node")
        partitioner = untrusted.text(document.get("partitioner"), "partitioner")
        return NodeFacts(
            node,
            info.name,
            address=untrusted.text(document.get("address"), "address"),
            rack=untrusted.text(document.get("rack"), "rack"),
            release=untrusted.text(document.get("release_version"), "release_version"),
            partitioner=partitioner,
            tokens=_tokens(document.get("tokens")) if partitioner in ("", MURMUR3) else (),
            space=_space(document, info),
            signed_off=_signed_off(document.get("signed_off"), node, info),
            loaded=_loaded(document.get("loaded")),
        )
    except Untrusted as error:
        return NodeFacts(node, info.name, rejected=str(error))


def _loaded(value: object) -> tuple[Loaded, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value) or len(value) > _LOADED:
        raise Untrusted("loaded is not a list of tables")
    return tuple(
        Loaded(
            untrusted.text(each.get("keyspace"), "loaded.keyspace", longest=_NAME),
            untrusted.text(each.get("table"), "loaded.table", longest=_NAME),
            untrusted.moment(each.get("at"), "loaded.at"),
            untrusted.integer(each.get("files"), "loaded.files"),
        )
        for each in value
    )


def _space(document: Mapping[str, Any], info: Listed) -> NodeSpace | None:
    space = document.get("space")
    if space is None:
        return None
    if not isinstance(space, dict):
        raise Untrusted("space is not an object")
    at = document.get("at", info.created.isoformat())
    return _parse_space({"at": at, "settings": document.get("settings"), **space})


def _parse_space(space: Mapping[str, Any]) -> NodeSpace:
    """Raises `Untrusted`."""
    return NodeSpace(
        at=untrusted.moment(space.get("at"), "at"),
        level=untrusted.text(space.get("level"), "level", longest=16),
        share=untrusted.number(space.get("share"), "share", low=0, high=1e6),
        used=untrusted.integer(space.get("used"), "used"),
        limit=untrusted.integer(space.get("limit"), "limit"),
        disk_free=untrusted.integer(space.get("disk_free"), "disk_free"),
        settings=CdcSettings.parse(space.get("settings")),
    )


def _signed_off(signed: object, node: layout.NodeName, info: Listed) -> SignedOff | None:
    if signed is None:
        return None
    if not isinstance(signed, dict):
        raise Untrusted("signed_off is not an object")
    unsynced = untrusted.integer(signed.get("unsynced_ms"), "unsynced_ms", high=_UNSYNCED_MS)
    at = untrusted.moment(signed.get("at"), "signed_off.at")
    members, datacenters = _members(signed.get("members"), node.cluster)
    return SignedOff(at, info.created, timedelta(milliseconds=unsynced), members, datacenters)


def _members(value: object, cluster: str) -> tuple[frozenset[str], frozenset[str]]:
    """(paths of the nodes, paths of the datacenters)."""
    if not isinstance(value, dict) or not all(isinstance(hosts, list) for hosts in value.values()):
        raise Untrusted("members are not lists by datacenter")
    if sum(map(len, value.values())) > _MEMBERS:
        raise Untrusted(f"more than {_MEMBERS} members")
    nodes = frozenset(
        layout.NodeName(cluster, untrusted.text(name, "a datacenter"), untrusted.text(host, "a host id", longest=64)).path
        for name, hosts in value.items()
        for host in hosts
    )
    return nodes, frozenset(f"{layout.part(cluster)}/{layout.part(untrusted.text(name, 'a datacenter'))}" for name in value)


def _tokens(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _TOKENS:
        raise Untrusted(f"tokens are not a list of at most {_TOKENS}")
    try:
        found = [int(untrusted.text(each, "a token", longest=24)) if isinstance(each, str) else each for each in value]
    except ValueError as error:
        raise Untrusted("a token is not an integer") from error
    return tuple(untrusted.integer(each, "a token", low=-(2**63)) for each in found)
