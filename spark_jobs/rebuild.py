"""The rebuild job: build state and tables again from the archive, as a new chain of batches.
`writetime rebuild --config FILE`

Strategy: check everything first (`writetime.pipeline.rebuild`): the archive, and the highest batch number
known to bucket, warehouse, Kafka and files. Then run batch by batch, the oldest hour first, in one Spark
session. With its first commit to a table, the new chain replaces the rows of the earlier one; tables that
receive no rows are emptied at the end. With `topics`, all events are published under that prefix, which has
its own progress; without it, no event is published, and later ones continue in the existing topics. The
rebuild document is finished last: until then nothing else plans batches or publishes, and running the command
again resumes the rebuild.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from pyspark.sql import SparkSession

from spark_jobs import ingest
from spark_jobs.failures import COMMITTERS, of_each
from spark_jobs.publish import Outbox
from spark_jobs.session import spark_session
from spark_jobs.sinks import kafka
from spark_jobs.sinks.avro_files import last_filed
from spark_jobs.sinks.iceberg import Fence, Warehouse
from writetime.config.kafka import KafkaConfig
from writetime.config.pipeline import PipelineConfig
from writetime.errors import BatchBusy, ConfigError
from writetime.pipeline import chains
from writetime.pipeline import rebuild as planning
from writetime.pipeline.archiver import archive
from writetime.pipeline.chains import Rebuild
from writetime.pipeline.documents import Manifest, Sealed
from writetime.pipeline.identity import owner
from writetime.pipeline.planner import history, read_manifest, read_schema, store_clock
from writetime.pipeline.publish_progress import Published, read_published, write_published
from writetime.pipeline.rule_check import rule_check
from writetime.storage import open_store
from writetime.storage.store import Store

log = structlog.get_logger()

Notify = Callable[[Rebuild, int, Sealed], None]
"""Called after each batch: with the rebuild, how many segments are in so far, and the seal."""


def run(config: PipelineConfig, *, topics: str | None = None, partial: bool = False, notify: Notify | None = None) -> Rebuild:
    """Begin a rebuild, or go on with the one that is under way, until it is finished. `topics`: publish all
    events under that prefix. `partial`: do without segments that are missing.

    BatchError if the archive lacks something; ConfigError if the options do not fit, or a rule of `columns` fits
    nothing; PublishError if Kafka cannot say what it has."""
    store, cluster = open_store(config.bucket), config.cluster.name
    _expect_prefix(config, topics)
    if chains.unfinished(store, cluster) is None:
        rule_check(store, config)()
    spark = spark_session(config, f"writetime rebuild {config.pipeline}")
    try:
        rebuild = chains.unfinished(store, cluster)
        if rebuild is None:
            rebuild = _begin(config, store, spark, topics, partial)
        chains.expect_same(rebuild, topics)
        if partial and not rebuild.chain.partial:
            rebuild = planning.go_partial(store, cluster, rebuild)
        return Job(config, store, spark, rebuild).run(notify or _log)
    finally:
        spark.stop()


def _expect_prefix(config: PipelineConfig, topics: str | None) -> None:
    if topics is None:
        return
    if config.kafka is None:
        raise ConfigError(
            "`kafka` is missing", operation="rebuild", obj=f"--topics {topics}", hint="Say in the pipeline's YAML where it is."
        )
    if topics == config.kafka.topic_prefix:
        hint = "Give another one: all events are sent again, and who has read these topics would read them twice."
        raise ConfigError("it is the pipeline's own prefix", operation="rebuild", obj=f"--topics {topics}", hint=hint)


def _begin(config: PipelineConfig, store: Store, spark: SparkSession, topics: str | None, partial: bool) -> Rebuild:
    cluster = config.cluster.name
    found = planning.look(store, cluster)
    if not partial:
        planning.expect_whole(found, cluster)
    last = max(_seen_outside(config, store, spark, topics))
    rebuild = planning.start(store, cluster, found, last, topics=topics, partial=partial, now=store_clock(store, cluster))
    log.info("rebuild begins", first=rebuild.chain.first, segments=rebuild.segments, lacking=rebuild.lacking)
    return rebuild


def _seen_outside(config: PipelineConfig, store: Store, spark: SparkSession, topics: str | None) -> list[int]:
    """The highest batch number in the warehouse, the files and Kafka."""
    who = owner(store, config.cluster.name, config.pipeline)
    if config.catalog is None:
        raise ConfigError("`catalog` is missing", operation="rebuild", hint="Say in the pipeline's YAML where the tables live.")
    seen = [Warehouse(spark, config.catalog.name, owner=who).seen()]
    if config.files is not None:
        seen.append(last_filed(config.files))
    if config.kafka is not None:
        seen.append(kafka.last_sent(config.kafka, who))
        if topics is not None:
            seen.append(kafka.last_sent(_with_prefix(config.kafka, topics), who))
    return seen


def _with_prefix(settings: KafkaConfig, topics: str) -> KafkaConfig:
    return settings.model_copy(update={"topic_prefix": topics})


@dataclass(frozen=True, slots=True, kw_only=True)
class Current(Fence):
    """Stops a delayed driver if another one has finished the rebuild, or has begun another one: what this one would find
    in a table then is not the trace of a restored backup."""

    rebuild: Rebuild

    def check(self, batch: int = 0) -> None:
        found = chains.unfinished(self.store, self.cluster)
        if found is None or found.chain.id != self.rebuild.chain.id:
            since = "" if found is None else f", and the rebuild that begins with batch {found.chain.first} is under way"
            raise BatchBusy(
                f"another driver has finished it{since}",
                operation="rebuild",
                obj=str(self.rebuild.chain.first),
                hint="Nothing is left to do." if found is None else "`writetime status` shows how far it is.",
            )


@dataclass
class Job:
    """One process of a rebuild."""

    config: PipelineConfig
    store: Store
    spark: SparkSession
    rebuild: Rebuild

    @property
    def cluster(self) -> str:
        return self.config.cluster.name

    def run(self, notify: Notify) -> Rebuild:
        """All batches, and what is to be done at the end."""
        planner = planning.Planner(self.store, self.cluster, self.rebuild, min(planning.MOST_SEGMENTS, self.config.segments_per_batch))
        while (manifest := self._next(planner)) is not None:
            sealed = ingest.run(self.config, manifest.number, self.spark)
            archive(self.store, self.cluster, sealed.number)
            planner.learn(sealed.number)
            notify(self.rebuild, len(planner.taken), sealed)
        last = history(self.store, self.cluster).base
        self._clear(last)
        waiting = self._publish(last)
        self._note_published(last)
        now = store_clock(self.store, self.cluster)
        return chains.finish(self.store, self.cluster, self.rebuild, last, now, waiting)

    def _next(self, planner: planning.Planner) -> Manifest | None:
        """The batch to run next. Checks before and after that the rebuild is current: a delayed driver must
        neither plan nor run a batch."""
        self._fence.check()
        manifest = planner.next(store_clock(self.store, self.cluster))
        self._fence.check()
        return manifest

    @property
    def _fence(self) -> Current:
        return Current(store=self.store, cluster=self.cluster, rebuild=self.rebuild)

    def _clear(self, last: int) -> None:
        """Empty the tables that received no rows from the chain."""
        assert self.config.catalog is not None
        tables = read_schema(self.store, self.cluster, last).captured()
        warehouse = Warehouse(
            self.spark,
            self.config.catalog.name,
            self.config.warehouse,
            self._fence,
            owner=owner(self.store, self.cluster, self.config.pipeline),
            batch_id=read_manifest(self.store, self.cluster, last).id,
            chain=self.rebuild.chain,
        )

        in_order = sorted(tables, key=lambda table: (table.full_name, str(table.id)))
        of_each(in_order, lambda table: warehouse.clear_former(table, last), workers=COMMITTERS)

    def _publish(self, last: int) -> dict[str, str]:
        """Publish all events under the requested prefix; returns, by table, the errors that need an
        operator."""
        if self.rebuild.topics is None or self.config.kafka is None:
            return {}
        settings = _with_prefix(self.config.kafka, self.rebuild.topics)
        start = Published(batch=self.rebuild.chain.first - 1, events=0)
        sent = Outbox(self.config.model_copy(update={"kafka": settings}), settings, self.store, self.spark, last).send(start)
        log.info("all events published again", prefix=self.rebuild.topics, events=sent.events, waiting=sorted(sent.waiting))
        return sent.reasons

    def _note_published(self, last: int) -> None:
        """Record that nothing up to the last batch is to be sent to the existing topics, except for tables of which all is to be
        sent again anyway."""
        note = Published(batch=last, events=0, kafka=self.config.kafka is not None, id=read_manifest(self.store, self.cluster, last).id)
        before = read_published(self.store, self.cluster)
        write_published(self.store, self.cluster, note.model_copy(update=before.of_other_chain() if before is not None else {}))


def _log(rebuild: Rebuild, done: int, sealed: Sealed) -> None:
    log.info("rebuilt", batch=sealed.number, segments=done, of=rebuild.segments, events=sealed.events)
