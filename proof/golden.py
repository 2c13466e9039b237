"""What a recorded cluster becomes, byte for byte: `python -m proof.golden record FOLDER`, later `compare FOLDER`.

Strategy: the shipped objects of the recorded cluster, its logs cut into small segments, go through ingest and publish in
batches whose time is pinned, once for each of a few pipelines with options. What is in their topics (partition, key,
value, headers, in the order of offsets of each key) and tables (rows, sorted) is written down as text, without what each run
has of its own: the version of the product, random identifiers, times of the clock, and the numbers of events in their batch,
which are given as Spark's tasks end. A change that should change nothing is tried with both commands: every line must be
equal. `compare` prints the first lines that differ, and ends with 1 if there is one.
The batch and publish jobs run by their entry points, on a real broker and registry; no Cassandra is needed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyiceberg.catalog.sql import SqlCatalog

from proof.orders import Orders, rows_of
from spark_jobs import publish
from tests.spark_jobs.pipeline import Pipeline
from tools.console import say
from tools.services.kafka import Kafka
from tools.services.registry import Registry
from writetime.config.pipeline import load
from writetime.events.serialization import MAGIC
from writetime.pipeline.archiver import archive
from writetime.pipeline.planner import plan_ingest

BATCHES: Final = 3
SEGMENTS: Final = 4
NOW: Final = datetime(2026, 12, 1, 12, tzinfo=UTC)
"""Of the first batch: after the recording."""
DEFAULTS: Final = {
    "buckets": 2,
    "events": {"deletes": "rows", "shape": "flat"},
}
KAFKA: Final = {
    "partitions": 3,
    "publishers": 2,
    "partition_by": "primary_key",
    "tombstones.on.delete": False,
    "headers": True,
    "decimal.handling.mode": "string",
    "time.precision.mode": "isostring",
    "format": "json",
}
_OWN: Final = (
    (re.compile(r'"version": ?"[^"]*"'), '"version":""'),
    (re.compile(r'"id": "[0-9a-f-]{36}", "pipeline"'), '"id": "", "pipeline"'),
    (re.compile(r'(\[\d+, \d+), "[0-9a-f-]{36}"\]'), r'\1, ""]'),
    (re.compile(r'"sequence": "(\[.{,30}?),[^,]*?\]"'), r'"sequence": "\1]"'),
    (re.compile(r'(\["writetime.sequence", \d+)\.\d+\]'), r"\1]"),
)
"""What each run has of its own, in the text of a line, and what is written down instead."""


@dataclass(frozen=True)
class Variant:
    """A pipeline with options of ingest, and what its events are published as, by name."""

    ingest: Mapping[str, Any] = field(default_factory=dict)
    publish: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"json": {}})


VARIANTS: Final = {
    "default": Variant(
        publish={
            "json": {},
            "avro": {"kafka": {"format": "avro", "decimal.handling.mode": "precise"}},
            "cells": {"events": {"shape": "cells"}},
            "adaptive": {"kafka": {"format": "json-schema", "time.precision.mode": "adaptive", "tombstones.on.delete": True}},
            "partitions": {"kafka": {"partition_by": "partition_key", "headers": False}},
        }
    ),
    "rules": Variant(
        ingest={
            "columns": {
                "column.exclude.list": ["shop.orders.receipt", "shop.orders.ratings"],
                "column.mask.hash.SHA-256.with.salt": [r"shop\..*\.(email|tracking)"],
                "column.mask.with.8.chars": ["shop.customers.name", "shop.orders.delivery_note"],
                "column.truncate.to.3.chars": ["shop.orders.status"],
                "salt": "golden",
                "rows": {"shop.orders": "amount is None or amount > 1000"},
            }
        },
        publish={"json": {}, "cells": {"events": {"shape": "cells"}}},
    ),
    "deletes": Variant(ingest={"events": {"deletes": "one"}}),
}


def record(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Run all variants under `folder`; yields what each topic and table holds, by name, in lines."""
    orders = Orders(folder / "source", segments=SEGMENTS)
    with Kafka(folder / "kafka", port=0) as kafka, Registry(folder / "registry") as registry:
        avro = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
        for name, variant in VARIANTS.items():
            say(f"golden run of {name}")
            pipeline = _ingested(orders, folder / name, variant)
            for namespace, table in _tables(pipeline):
                yield f"{name}/tables/{namespace}.{table}", sorted(map(_line, rows_of(pipeline, namespace, table)))
            for how, options in variant.publish.items():
                prefix = f"{name}-{how}"
                servers = {"bootstrap.servers": kafka.bootstrap, "topic.prefix": prefix, "schema.registry.url": registry.url}
                told = _with(pipeline, DEFAULTS, variant.ingest, {"kafka": {**KAFKA, **servers}}, options)
                publish.run(told.config, everything=True)
                for topic, lines in _topics(kafka.bootstrap, prefix, avro):
                    yield f"{name}/topics/{how}/{topic}", lines


def _ingested(orders: Orders, folder: Path, variant: Variant) -> Pipeline:
    """A pipeline whose batches are done."""
    pipeline = orders.filled(_with(Pipeline.create(folder), DEFAULTS, variant.ingest))
    random = Random(0)
    segments = sorted(orders.cut(random), key=lambda segment: segment.name)
    random.shuffle(segments)
    for number in range(BATCHES):
        for segment in segments[number::BATCHES]:
            pipeline.store.put(segment.name, segment.data, metadata={"sealed_at": segment.sealed_at.isoformat()})
        manifest = plan_ingest(pipeline.store, pipeline.cluster, now=NOW + timedelta(hours=number))
        assert manifest is not None
        archive(pipeline.store, pipeline.cluster, pipeline.run(manifest).number)
    return pipeline


def _with(pipeline: Pipeline, *options: Mapping[str, Any]) -> Pipeline:
    """The pipeline with nothing in its YAML but where it is, and these options, by section."""
    found = yaml.safe_load(pipeline.site.config.read_text(encoding="utf-8"))
    document = {key: found[key] for key in ("pipeline", "cluster", "bucket", "state", "catalog")}
    for section, value in (item for each in options for item in each.items()):
        document[section] = {**document.get(section, {}), **value} if isinstance(value, Mapping) else value
    path = pipeline.site.config.with_name("golden.yaml")
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return replace(pipeline, config=load(path).model_copy(update={"spark": pipeline.config.spark}))


def _tables(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{pipeline.site.catalog}", **pipeline.site.lake)
    for namespace in sorted(catalog.list_namespaces()):
        for name in sorted(catalog.list_tables(namespace)):
            yield ".".join(namespace), name[-1]


def _topics(bootstrap: str, prefix: str, avro: AvroDeserializer) -> Iterator[tuple[str, list[str]]]:
    """The topics of a prefix, each with its committed records, by partition, key and offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": prefix, "enable.partition.eof": True})
    try:
        listed = consumer.list_topics(timeout=30).topics
        for topic in sorted(each for each in listed if each.startswith(f"{prefix}.")):
            records = (each for partition in sorted(listed[topic].partitions) for each in _records(consumer, topic, partition, avro))
            yield topic, [line for _, line in sorted(records, key=lambda each: each[0])]
    finally:
        consumer.close()


def _records(consumer: Consumer, topic: str, partition: int, avro: AvroDeserializer) -> Iterator[tuple[tuple[int, bytes], str]]:
    consumer.assign([TopicPartition(topic, partition, 0)])
    while (message := consumer.poll(60)) is not None:
        if (error := message.error()) is None:
            both = (message.key(), MessageField.KEY), (message.value(), MessageField.VALUE)
            key, value = (avro(data, SerializationContext(topic, of)) if (data or b"").startswith(MAGIC) else data for data, of in both)
            yield (partition, message.key() or b""), _line([partition, key, value, message.headers()])
        elif error.code() == KafkaError._PARTITION_EOF:
            return
        else:
            raise KafkaException(error)
    raise TimeoutError(f"no answer about {topic}")


def _line(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=_as_text, ensure_ascii=False)
    for own, instead in _OWN:
        text = own.sub(instead, text)
    return text


def _as_text(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return json.loads(value)
        except ValueError:
            return value.hex()
    return repr(value)


def write(folder: Path, name: str, lines: list[str]) -> None:
    """Keep the lines of a topic or table."""
    path = folder / f"{name}.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as target:
        target.writelines(f"{line}\n" for line in lines)


def read(folder: Path) -> dict[str, list[str]]:
    """What was kept in a folder, by name."""
    found = {}
    for path in sorted(folder.rglob("*.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as source:
            found[str(path.relative_to(folder))[: -len(".gz")]] = source.read().splitlines()
    return found


def differences(expected: Mapping[str, list[str]], found: Mapping[str, list[str]]) -> Iterator[str]:
    """Each name whose lines differ, with the first that do."""
    for name in sorted(expected.keys() | found.keys()):
        pairs = zip_longest(expected.get(name, ()), found.get(name, ()))
        if different := [pair for pair in pairs if pair[0] != pair[1]]:
            before, after = different[0]
            yield f"{name}: {len(different)} lines differ, the first:\n  - {before}\n  + {after}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.golden", description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    if options.what == "record" and options.folder.exists():
        parser.error(f"{options.folder} exists")
    with tempfile.TemporaryDirectory(prefix="writetime-golden-") as folder:
        found = dict(record(Path(folder)))
    if options.what == "record":
        for name, lines in found.items():
            write(options.folder, name, lines)
    different = list(differences(read(options.folder), found))
    say("\n".join([*different, f"{len(found)} topics and tables, {sum(map(len, found.values()))} lines, {len(different)} differ"]))
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
