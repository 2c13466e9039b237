"""What shippers of earlier versions left in a bucket, as tests.shippers.record wrote it down."""

from __future__ import annotations

import base64
import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import UUID

FOLDER = Path(__file__).resolve().parent
VERSIONS = sorted(path.name.removesuffix(".json.xz") for path in FOLDER.glob("*.json.xz"))


@dataclass(frozen=True)
class Shipped:
    """An object that a shipper wrote."""

    name: str
    metadata: dict[str, str]
    data: bytes


@dataclass(frozen=True)
class Recording:
    """`rows`: what shop.orders held in the end, as (id, line, note)."""

    cluster: str
    objects: list[Shipped]
    rows: list[tuple[int, int, str]]


@cache
def opened(version: str) -> Recording:
    document = json.loads(lzma.decompress((FOLDER / f"{version}.json.xz").read_bytes()))
    objects = [Shipped(each["name"], each["metadata"], base64.b64decode(each["data"])) for each in document["objects"]]
    return Recording(document["cluster"], objects, [(key, line, note) for key, line, note in document["rows"]])


def snapshot(version: str = VERSIONS[-1] if VERSIONS else "") -> dict[str, Any]:
    """The last schema that was shipped."""
    *_, last = sorted((each for each in opened(version).objects if each.name.startswith("schemas/")), key=lambda each: each.name)
    return dict(json.loads(last.data))


TABLE = UUID(next(table["id"] for table in snapshot()["tables"] if table["table_name"] == "orders"))
