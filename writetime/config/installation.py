"""The pipelines of an Airflow installation: the YAML files named by one setting.

    /etc/writetime/orders.yaml                           one pipeline
    /etc/writetime/orders.yaml:/etc/writetime/bets.yaml  several, separated as in PATH
    /etc/writetime/pipelines                             several: all *.yaml and *.yml files of the folder, even if there is only one

Strategy: each file is loaded separately. An invalid one, or one that cannot be loaded for any reason, is reported
and left out; the others stay. Two pipelines that use the same resource are both left out, because either may be the
wrong one. Must not know a store or Airflow.
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
"""The environment variable of scheduler, DAG processor, workers and API server."""
_SUFFIXES: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline and its file."""

    path: Path
    config: PipelineConfig

    @property
    def name(self) -> str:
        """Unique within `Pipelines.found`."""
        return self.config.pipeline


@dataclass(frozen=True, slots=True)
class Pipelines:
    """`found`: valid pipelines in the order of their files. `several`: whether pipeline names appear in DAG
    ids; not if the setting is a single file. `problems`: errors of the others."""

    several: bool
    found: tuple[Pipeline, ...]
    problems: tuple[ConfigError, ...]


def pipelines(setting: str | None) -> Pipelines:
    """The pipelines of a value of WRITETIME_CONFIG; none if it is not set."""
    paths, problems = files(setting), []
    found: list[Pipeline] = []
    if setting and not paths:
        problems.append(
            ConfigError(
                "no pipeline file found", operation="find the pipelines", obj=setting, hint=f"Add a *.yaml file, or correct {SETTING}."
            )
        )
    for path in paths:
        try:
            found.append(Pipeline(path, load(path)))
        except ConfigError as error:
            problems.append(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other pipelines stay
            problems.append(ConfigError(f"{type(error).__name__}: {error}", operation="read the configuration", obj=str(path)))
    clashes = list(_clashes(found))
    taken_out = {path for path, _ in clashes}
    kept = tuple(pipeline for pipeline in found if pipeline.path not in taken_out)
    return Pipelines(_is_several(setting), kept, (*problems, *(error for _, error in clashes)))


def files(setting: str | None) -> tuple[Path, ...]:
    """The files in a value of WRITETIME_CONFIG without duplicates, existing or not; a folder that cannot be read
    counts as one."""
    return tuple(dict.fromkeys(path for part in _parts(setting) for path in _files(Path(part))))


def _files(path: Path) -> list[Path]:
    try:
        return sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file()) if path.is_dir() else [path]
    except OSError:
        return [path]


def _parts(setting: str | None) -> list[str]:
    return [part for part in (setting or "").split(os.pathsep) if part]


def _is_several(setting: str | None) -> bool:
    parts = _parts(setting)
    return len(parts) > 1 or any(Path(part).is_dir() for part in parts)


def _clashes(found: Sequence[Pipeline]) -> Iterator[tuple[Path, ConfigError]]:
    """The files that use the same resource as another one, each with its error."""
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
                        f"{what} {value} is also used by {others}",
                        operation="compare the pipelines",
                        obj=str(pipeline.path),
                        hint="None of them runs until each has its own.",
                    ),
                )


def _claims(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Resources that pipelines cannot share: the name (DAG ids and assets), the cluster (batches), the topic
    prefix."""
    yield "the name", f"`{config.pipeline}`"
    yield "the cluster", f"`{config.cluster.name}` in {config.bucket.rstrip('/')}"
    if config.kafka is not None:
        yield "the topic prefix", f"`{config.kafka.topic_prefix}` at {config.kafka.bootstrap_servers}"
