"""What an engine reads of a table: `readers.py ENGINE CATALOG NAMESPACE.TABLE COLUMN…` prints a line of JSON for
each row. Runs in the environment of tools/engines.txt, so it imports nothing of this repository.

Values are plain, the same whatever an engine calls them: texts and bytes in hexadecimal, times in µs, days as
dates, maps as pairs in order. An empty collection is null, as Cassandra has it, and so is a struct of nulls:
ClickHouse has no other, and no row of ours is one."""

from __future__ import annotations

import datetime
import decimal
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Rows = Iterable[dict[str, Any]]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def main(engine: str, catalog: str, name: str, *columns: str) -> None:
    from pyiceberg.catalog.sql import SqlCatalog

    table = SqlCatalog("lake", uri=f"sqlite:///{catalog}").load_table(name)
    for row in ENGINES[engine](table, columns):
        print(json.dumps([plain(row[column]) for column in columns]))


def of_pyiceberg(table: Any, columns: tuple[str, ...]) -> Rows:
    rows: Rows = table.scan(selected_fields=columns).to_arrow().to_pylist()
    return rows


def of_polars(table: Any, columns: tuple[str, ...]) -> Rows:
    import polars

    rows: Rows = polars.scan_iceberg(table).select(columns).collect().to_arrow().to_pylist()
    return rows


def of_duckdb(table: Any, columns: tuple[str, ...]) -> Rows:
    import duckdb

    folder = Path(str(importlib.metadata.distribution("duckdb-ext-iceberg").locate_file("duckdb_ext/extensions")))
    connection = duckdb.connect(config={"extension_directory": str(folder), "autoinstall_known_extensions": "false"})
    for extension in ("avro", "parquet", "iceberg"):
        connection.execute(f"LOAD {extension}")
    listed = ", ".join(f'"{column}"' for column in columns)
    rows: Rows = connection.execute(f"SELECT {listed} FROM iceberg_scan('{table.metadata_location}')").arrow().read_all().to_pylist()
    return rows


def of_clickhouse(table: Any, columns: tuple[str, ...]) -> Rows:
    import chdb

    # It reads files below its own folder only.
    folder = table.location().removeprefix("file://")
    os.chdir(folder)
    listed = ", ".join(f"`{column}`" for column in columns)
    settings = "SETTINGS output_format_arrow_string_as_string = 0"
    rows: Rows = chdb.query(f"SELECT {listed} FROM icebergLocal('{folder}') {settings}", "ArrowTable").to_pylist()
    return rows


def of_trino(table: Any, columns: tuple[str, ...]) -> Rows:
    import trino

    namespace, name = table.name()
    file = table.metadata_location.rpartition("/")[2]
    with trino.dbapi.connect(host="127.0.0.1", port=int(os.environ["TRINO_PORT"]), user="reader", catalog="lake") as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {namespace}")
        cursor.fetchall()
        cursor.execute(f"CALL lake.system.register_table('{namespace}', '{name}', '{table.location()}', '{file}')")
        cursor.fetchall()
        listed = ", ".join(f'"{column}"' for column in columns)
        for row in cursor.execute(f"SELECT {listed} FROM {namespace}.{name}"):
            yield dict(zip(columns, map(named, row), strict=True))


def named(value: Any) -> Any:
    """A value of Trino's client as the others give it: structs by name, maps as pairs."""
    if isinstance(value, tuple):
        return dict(zip(value._names, map(named, value), strict=True))  # type: ignore[attr-defined]
    if isinstance(value, dict):
        return [(named(key), named(each)) for key, each in value.items()]
    return [named(each) for each in value] if isinstance(value, list) else value


ENGINES: dict[str, Callable[[Any, tuple[str, ...]], Rows]] = {
    "pyiceberg": of_pyiceberg,
    "polars": of_polars,
    "duckdb": of_duckdb,
    "clickhouse": of_clickhouse,
    "trino": of_trino,
}


def plain(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode().hex()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return (moment - EPOCH) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date | decimal.Decimal):
        return str(value)
    if isinstance(value, dict):
        fields = {name: plain(each) for name, each in value.items()}
        return fields if any(each is not None for each in fields.values()) else None
    if isinstance(value, list):
        pairs = [entry for each in value if (entry := pair(each)) is not None]
        return (sorted(pairs) if pairs else [plain(each) for each in value]) or None
    return value


def pair(entry: Any) -> list[Any] | None:
    """An entry of a map, in whichever form."""
    if isinstance(entry, tuple):
        return [plain(each) for each in entry]
    return [plain(entry["key"]), plain(entry["value"])] if isinstance(entry, dict) and entry.keys() == {"key", "value"} else None


if __name__ == "__main__":
    main(*sys.argv[1:])
