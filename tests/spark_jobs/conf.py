"""What Spark is told in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools import ROOT

SPARK: Final = {
    "spark.master": "local[2]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Batches of tests are small and many: compiling queries costs more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m",
    "spark.sql.codegen.wholeStage": "false",
}


def spark_conf(folder: Path, *more: Path) -> dict[str, str]:
    """What Spark is told in tests, with its own files under `folder`, and the jars of `more` folders."""
    jars = ",".join(str(jar) for place in (ROOT / "jars" / "spark", *more) for jar in sorted(place.glob("*.jar")))
    assert jars, "the jars are not there: make setup"
    return {**SPARK, "spark.jars": jars, "spark.sql.warehouse.dir": str(folder / "spark-warehouse")}
