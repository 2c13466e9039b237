"""The page in a browser, in a running Airflow and over a ledger of 100,000 segments: from the request to the
first paint.

    make bench-paint

The bucket is that of `benchmarks.page`. All four processes of Airflow run; its DAGs are paused. A headless
Chromium logs in and requests each view several times. Reported is the median of the browser's own
`first-contentful-paint`, which includes Airflow's authentication, the page's app, the loopback, and the
browser's work.
"""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
import yaml

from benchmarks.page import CLUSTER, PLACES, Fleet, views
from tests.airflow.browser import Browser, browsing
from tools import ROOT
from tools.services.airflow import Airflow

PICTURES = ROOT / "var" / "bench-paint"

app = typer.Typer(add_completion=False)


@app.command()
def main(
    batches: Annotated[int, typer.Option(help="Batches, one a minute.")] = 1000,
    per_batch: Annotated[int, typer.Option(help="Segments of a batch.")] = 100,
    passes: Annotated[int, typer.Option(help="How often each view is asked for, after a first time that does not count.")] = 5,
) -> None:
    """Measure, and print milliseconds."""
    with TemporaryDirectory(prefix="writetime-paint-") as name:
        folder = Path(name)
        entries = Fleet(folder / "bucket", batches, per_batch, random.Random(1)).write()
        print(f"{entries} ledger entries in {batches} batches", flush=True)
        (folder / "pipeline.yaml").write_text(yaml.safe_dump(pipeline(folder)), encoding="utf-8")
        with (
            Airflow(folder / "airflow", config=folder / "pipeline.yaml", port=0) as airflow,
            browsing(airflow.url, folder, PICTURES) as browser,
        ):
            browser.log_in("admin", airflow.password)
            _measure(browser, views(folder / "bucket", batches, per_batch), passes)


def pipeline(folder: Path) -> dict[str, Any]:
    """A pipeline over the bucket, that nothing is run of."""
    schedules = ("ingest_schedule", "audit_schedule", "bootstrap_schedule", "maintain_schedule", "verify_schedule", "publish_fallback")
    return {
        "pipeline": "page",
        "cluster": {"name": CLUSTER, "datacenters": [datacenter for datacenter, _ in PLACES]},
        "bucket": str(folder / "bucket"),
        "airflow": {**dict.fromkeys(schedules), "watch": {"schedule": None}},
    }


def _measure(browser: Browser, wanted: dict[str, str], passes: int) -> None:
    print(f"{'view':32} {'first ms':>9} {'then ms':>9} {'most ms':>9}", flush=True)
    for name, address in wanted.items():
        found = [_painted(browser, address) for _ in range(passes + 1)]
        print(f"{name:32} {found[0]:9.0f} {median(found[1:]):9.0f} {max(found[1:]):9.0f}", flush=True)
        browser.picture(name.replace(" ", "-").replace(",", ""))


def _painted(browser: Browser, address: str) -> float:
    browser.open_page(address)
    return browser.painted()


if __name__ == "__main__":
    app()
