"""The pipelines of an Airflow installation: the YAML files named by one setting.

    /etc/writetime/orders.yaml                           one pipeline
    /etc/writetime/orders.yaml:/etc/writetime/bets.yaml  several, separated as in PATH
    /etc/writetime/pipelines                             several: all *.yaml and *.yml files of the folder, even if there is only one

Strategy: each file is loaded separately. An invalid one, or one that cannot be loaded for any reason, is reported
and left out; the others stay. Two pipelines that use the same resource are both left out, because either may be the
wrong one. A problem knows the pipelines that its text is about, so that it can be kept from users of others. Must not
know a store or Airflow.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from writetime.config.pipeline import NAME, VARIABLE, PipelineConfig, load
from writetime.errors import ConfigError

SETTING: Final = "WRITETIME_CONFIG"
"""The environment variable of scheduler, DAG processor, workers and API server."""
_SUFFIXES: Final = (".yaml", ".yml")
_GIVEN_NAME: Final = re.compile(r"""(?:^[ \t]*|[{,]\s*)["']?pipeline["']?[ \t]*:[ \t]*["']?((?:\$\{\w+\}|[^\s"'#,}])*)""", re.MULTILINE)
"""The key `pipeline`, also where the rest of the file is no YAML."""
_WORD: Final = re.compile(r"[\w.-]+")


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
class Problem:
    """Why a file cannot be used. `owners`: the pipelines that the file may belong to (`owners_of`). If the error names
    files of other pipelines: `others` are their owners, and `alone` is the error without them."""

    error: ConfigError
    owners: frozenset[str]
    others: frozenset[str] = frozenset()
    alone: ConfigError | None = None

    def __str__(self) -> str:
        return str(self.error)

    def text(self, may_see: Callable[[str], bool]) -> str | None:
        """The text for a user who may see only pipelines for which `may_see` holds; None if it is not for them."""
        if not all(map(may_see, self.owners)):
            return None
        return str(self.error if self.alone is None or all(map(may_see, self.others)) else self.alone)


@dataclass(frozen=True, slots=True)
class Pipelines:
    """`found`: valid pipelines in the order of their files. `several`: whether pipeline names appear in DAG
    ids; not if the setting is a single file. `problems`: errors of the others."""

    several: bool
    found: tuple[Pipeline, ...]
    problems: tuple[Problem, ...]


def pipelines(setting: str | None) -> Pipelines:
    """The pipelines of a value of WRITETIME_CONFIG; none if it is not set."""
    paths, problems = files(setting), []
    found: list[Pipeline] = []
    if setting and not paths:
        hint = f"Add a *.yaml file, or correct {SETTING}."
        error = ConfigError("no pipeline file found", operation="find the pipelines", obj=setting, hint=hint)
        problems.append(Problem(error, frozenset({""})))
    for path in paths:
        try:
            found.append(Pipeline(path, load(path)))
        except ConfigError as error:
            problems.append(Problem(error, owners_of(path)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the other pipelines stay
            other = ConfigError(f"{type(error).__name__}: {error}", operation="read the configuration", obj=str(path))
            problems.append(Problem(other, owners_of(path)))
    clashes = list(_clashes(found))
    taken_out = {path for path, _ in clashes}
    kept = tuple(pipeline for pipeline in found if pipeline.path not in taken_out)
    return Pipelines(_is_several(setting), kept, (*problems, *(problem for _, problem in clashes)))


def owners_of(path: Path) -> frozenset[str]:
    """The pipelines that a file may belong to, whatever is wrong with it: the one that the file is named after, and the one
    that it names itself. "" stands for an unknown one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    given = {VARIABLE.sub(lambda found: os.environ.get(found[1], "${}"), name) for name in _GIVEN_NAME.findall(text)}
    # A word that no pipeline can be called says nothing. Anything else (a variable that is not set, an alias) may be any name.
    unknown = {""} if any(not _WORD.fullmatch(name) for name in given) else set()
    return frozenset(unknown | {name for name in {path.stem, *given} if re.fullmatch(NAME, name)}) or frozenset({""})


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


def _clashes(found: Sequence[Pipeline]) -> Iterator[tuple[Path, Problem]]:
    """The files that use the same resource as another one, each with its problem."""
    claims: dict[tuple[str, str], list[Pipeline]] = defaultdict(list)
    for pipeline in found:
        for claim in _claims(pipeline.config):
            claims[claim].append(pipeline)
    for (what, value), by in claims.items():
        for pipeline in by if len(by) > 1 else ():
            yield pipeline.path, _clash(f"{what} {value}", pipeline.path, [other.path for other in by if other is not pipeline])


def _clash(claim: str, path: Path, others: Sequence[Path]) -> Problem:
    def error(by: str) -> ConfigError:
        hint = "None of them runs until each has its own."
        return ConfigError(f"{claim} is also used by {by}", operation="compare the pipelines", obj=str(path), hint=hint)

    named = error(", ".join(map(str, others)))
    return Problem(named, owners_of(path), frozenset().union(*map(owners_of, others)), error("another pipeline"))


def _claims(config: PipelineConfig) -> Iterator[tuple[str, str]]:
    """Resources that pipelines cannot share: the name (DAG ids and assets), the cluster (batches), the topic
    prefix."""
    yield "the name", f"`{config.pipeline}`"
    yield "the cluster", f"`{config.cluster.name}` in {config.bucket.rstrip('/')}"
    if config.kafka is not None:
        yield "the topic prefix", f"`{config.kafka.topic_prefix}` at {config.kafka.bootstrap_servers}"
