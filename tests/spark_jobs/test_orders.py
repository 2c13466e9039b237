"""The recorded ring's segments in any order give the ring's answer. Two orders here; `make orders` runs as
many as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.orders import Orders, different

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.thorough]


SEEDS = (1, 5)


def test_orders_batch_sizes_and_repetitions_change_nothing(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    found = [orders.run(seed, most_batches=2, replay=False) for seed in SEEDS]
    assert different(found) == []
    assert found[0].batches != found[1].batches
    assert sum(order.again for order in found) > 0
    assert all(order.folded["shop.orders"] for order in found)
