"""Which pipelines one Airflow has: the YAMLs that one setting names.

    /etc/writetime/orders.yaml                           one pipeline
    /etc/writetime/orders.yaml:/etc/writetime/bets.yaml  several, separated as in PATH
    /etc/writetime/pipelines                             several: the *.yaml and *.yml of that folder, also while there is but one

Strategy: each file is read for itself. What is wrong with one is told and takes it out, and the others stay. Two that would work over the
same thing are both taken out, since nobody can tell which one is meant. Knows no store and no Airflow.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import ConfigError

SETTING: Final = "WRITETIME_CONFIG"
"""The environment variable that names them, for scheduler, DAG processor, workers and API server alike."""
_SUFFIXES: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline and the file that describes it."""

    path: Path
    config: PipelineConfig

    @property
    def name(self) -> str:
        """Unique among those that were found with it."""
        return self.config.pipeline


@dataclass(frozen=True, slots=True)
class Pipelines:
    """`found`: those that can be used, in the order of their files. `several`: whether they go by their names, as they do unless the
    setting is the name of one file. `problems`: what is wrong with the others."""

    several: bool
    found: tuple[Pipeline, ...]
    problems: tuple[ConfigError, ...]


def pipelines(setting: str | None) -> Pipelines:
    """What the value of WRITETIME_CONFIG names; nothing of it if that is not set."""
    paths, problems = files(setting), []
    found: list[Pipeline] = []
    if setting and not paths:
        problems.append(
            ConfigError("names no file", operation="find the pipelines", obj=setting, hint=f"Put a *.yaml there, or correct {SETTING}.")
        )
    for path in paths:
        try:
            found.append(Pipeline(path, load(path)))
        except ConfigError as error:
            problems.append(error)
    clashes = list(_clashes(found))
    taken_out = {path for path, _ in clashes}
    kept = tuple(pipeline for pipeline in found if pipeline.path not in taken_out)
    return Pipelines(_is_several(setting), kept, (*problems, *(error for _, error in clashes)))


def files(setting: str | None) -> tuple[Path, ...]:
    """The files that a value of WRITETIME_CONFIG names, each once, whether they are there or not."""
    named: dict[Path, None] = {}
    for part in _parts(setting):
        path = Path(part)
        for each in sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file()) if path.is_dir() else (path,):
            named[each] = None
    return tuple(named)


def _parts(setting: str | None) -> list[str]:
    return [part for part in (setting or "").split(os.pathsep) if part]


def _is_several(setting: str | None) -> bool:
    parts = _parts(setting)
    return len(parts) > 1 or any(Path(part).is_dir() for part in parts)


def _clashes(found: Sequence[Pipeline]) -> Iterator[tuple[Path, ConfigError]]:
    """The files that claim what another one claims too, each with what is wrong."""
    claims: dict[tuple[str, str], list[Pipeline]] = defaultdict(list)
    for pipeline in found:
        for claim in _claims(pipeline.config):
            claims[claim].append(pipeline)
    for (what, value), by in claims.items():
        if len(by) > 1:
            for pipeline in by:
                others = ", ".join(str(other.path) for other in by if other is not pipeline)
                yield (
                    pipeline.path,
                    ConfigError(
                        f"{what} {value} is that of {others} too",
                        operation="tell pipelines apart",
                        obj=str(pipeline.path),
                        hint="None of them is run until each has its own.",
                    ),
                )


def _claims(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """What no two pipelines may share: DAG ids and assets go by the name, batches by the ring, what Kafka has got by the prefix."""
    yield "the name", f"`{config.pipeline}`"
    yield "the ring", f"`{config.cluster.name}` in {config.bucket.rstrip('/')}"
    if config.kafka is not None:
        yield "the topic prefix", f"`{config.kafka.topic_prefix}` at {config.kafka.bootstrap_servers}"
