"""Sign-offs of shippers that a test has not let query their nodes."""

from __future__ import annotations

import json
from datetime import datetime

from writetime.pipeline.node_facts import read_facts
from writetime.storage import layout
from writetime.storage.store import Store


def sign_off(store: Store, cluster: str, at: datetime) -> None:
    """Every node that ships has shipped everything that it had logged by `at`."""
    statuses = {each.node: json.loads(store.read(each.object)) for each in read_facts(store, cluster)}
    members: dict[str, list[str]] = {}
    for node in statuses:
        members.setdefault(node.datacenter, []).append(node.host_id)
    for node, status in statuses.items():
        status["signed_off"] = {"at": at.isoformat(), "unsynced_ms": 0, "members": members}
        store.put(layout.node_status(node, at, "51934d0f"), json.dumps(status).encode())
