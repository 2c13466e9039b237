"""Iceberg's own catalog and file access in a JVM without Spark: a second to start, and with an environment of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tools import ROOT

_SCHEMA = '{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"id","required":false,"type":"long"}]}'


@contextlib.contextmanager
def running(*jars: Path) -> Iterator[JavaGateway]:
    """A JVM with the jars of Spark, of Iceberg and of these folders."""
    home = Path(pyspark.__file__).parent / "jars"
    (py4j,) = home.glob("py4j-*.jar")
    path = ":".join(f"{folder}/*" for folder in (home, ROOT / "jars" / "spark", *jars))
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    port = launch_gateway(jarpath=str(py4j), classpath=path, javaopts=options, die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield gateway
    finally:
        gateway.shutdown()


class Tables:
    """A catalog in SQLite with its tables at `warehouse`."""

    def __init__(self, gateway: JavaGateway, warehouse: str, database: Path, options: dict[str, str]) -> None:
        self._gateway, self._api = gateway, gateway.jvm.org.apache.iceberg
        self._catalog = self._api.jdbc.JdbcCatalog()
        self._catalog.setConf(gateway.jvm.org.apache.hadoop.conf.Configuration())
        known = {"uri": f"jdbc:sqlite:{database}", "warehouse": warehouse, "jdbc.schema-version": "V1", "unique-table-location": "true"}
        self._catalog.initialize("lake", known | options)

    def create(self, namespace: str, name: str) -> Any:
        """A table with the column `id`."""
        levels = self._gateway.new_array(self._gateway.jvm.java.lang.String, 1)
        levels[0] = namespace
        where = self._api.catalog.Namespace.of(levels)
        self._catalog.createNamespace(where)
        schema, spec = self._api.SchemaParser.fromJson(_SCHEMA), self._api.PartitionSpec.unpartitioned()
        return self._catalog.createTable(self._api.catalog.TableIdentifier.of(where, name), schema, spec)

    def append(self, table: Any, path: str, size: int, rows: int) -> None:
        """Commit a Parquet file."""
        made = self._api.DataFiles.builder(table.spec()).withPath(path).withFileSizeInBytes(size).withRecordCount(rows)
        table.newAppend().appendFile(made.withFormat("parquet").build()).commit()

    def rows(self, table: Any) -> list[int]:
        return [row.getField("id") for row in _each(self._api.data.IcebergGenerics.read(table).build())]

    def files(self, table: Any) -> list[str]:
        """As Iceberg lists them, below the table's location."""
        return [found.location() for found in _each(table.io().listPrefix(f"{table.location()}/"))]


def _each(found: Any) -> Iterator[Any]:
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()
