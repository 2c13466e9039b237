"""What no node's record of a TRUNCATE decides: kept, read from the ring again, or named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.spark_jobs.synthetic import CLUSTER, Ring, insert
from writetime.cassandra.types.byte_comparable import split_record_key
from writetime.config.cluster import CqlConfig
from writetime.monitoring.status import as_document, as_text
from writetime.pipeline.batch_history import Batches
from writetime.storage import layout


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_rows_in_doubt_are_named_or_noted_to_be_read_again(tmp_path: Path) -> None:
    ring = Ring.create(tmp_path, "a", "b")
    ring.truncate(10, "a")
    # Node b left no record, and its segment was begun before the TRUNCATE and finished after it.
    ring.write(insert(1, 1, 5, name=1), "b")
    ring.finish_and_ship(20)
    first = ring.batch(100)
    assert ring.current() == {(1, 1): {"name": 1}}
    assert (first.undecided, [account.superseded for account in first.accounting if account.undecided]) == ({"shop.orders": 1}, [0])
    seen = Batches(ring.store, CLUSTER)
    assert as_document(seen, 5)["undecided"] == {"shop.orders": 1}
    assert "may be removed by a TRUNCATE: 1 updates of shop.orders, which no record decides" in as_text(seen, 5)
    assert list(ring.store.list(layout.incomplete_rows_prefix(CLUSTER))) == []

    cluster = ring.config.cluster.model_copy(update={"cql": CqlConfig(contact_points=["127.0.0.1"])})
    ring.config = ring.config.model_copy(update={"cluster": cluster})
    ring.write(insert(2, 1, 6, name=2), "b")
    ring.finish_and_ship(30)
    second = ring.batch(200)
    assert second.undecided == {"shop.orders": 1}
    (note,) = (json.loads(ring.store.read(info.name)) for info in ring.store.list(layout.incomplete_rows_prefix(CLUSTER)))
    (key,) = note["keys"]
    assert (note["batch"], note["whole"]) == (second.number, True)
    assert split_record_key(bytes.fromhex(key))[0] == (2).to_bytes(4, "big")
