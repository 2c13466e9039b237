"""The Python of docs/warehouse.md, run on a pipeline's tables: other engines than Spark read what it says."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter
from typing import Any

from tests.spark_jobs.pipeline import Pipeline
from tools import ROOT

PAGE = ROOT / "docs" / "warehouse.md"
DEMO = "var/demo/lake/catalog.db"


def expect_the_page_to_hold(pipeline: Pipeline) -> None:
    """pyiceberg and DuckDB see the rows and events that there are."""
    page = PAGE.read_text(encoding="utf-8")
    assert DEMO in page
    seen: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
            exec(compile(block.replace(DEMO, str(pipeline.site.catalog)), PAGE.name, "exec"), seen)
    rows = pipeline.rows("shop", "orders")
    customers = Counter(row["customer_id"] for row in rows)
    top = sorted(customers.items(), key=lambda each: (-each[1], each[0]))[:5]
    assert [row[:2] for row in seen["top"].fetchall()] == top
    assert seen["duck"].sql("SELECT count(*) FROM orders").fetchall() == [(len(rows),)]
    events = pipeline.rows("shop__changes", "orders")
    assert seen["changes"].sql("SELECT count(*) FROM changes").fetchall() == [(len(events),)]
    first = sorted((event["batch"], event["ordinal"], event["op"]) for event in events)[:5]
    assert [row[:3] for row in seen["story"].fetchall()] == first
    assert "customer_id" in printed.getvalue()
