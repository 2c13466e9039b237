"""The contents and defects of one segment, for `writetime verify`: checks every section, frame, CRC and
mutation.

    good         everything can be read and decoded
    undecodable  the bytes are valid, but a schema is missing
    damaged      bytes are lost: a CRC is wrong, or the segment ends early
    unreadable   not a segment, no such file, or a key or a codec is missing (`Unreadable`)

The segment's `_cdc.idx` is checked too. This module does not know files or terminals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from writetime.cassandra.commitlog import idx, sections
from writetime.cassandra.commitlog.descriptor import parse as parse_header
from writetime.cassandra.commitlog.mutation_json import Failure
from writetime.cassandra.commitlog.segment import Frame, Scan
from writetime.cassandra.model import Mutation
from writetime.cassandra.schema.model import Schema
from writetime.errors import UnknownColumn, UnknownTable, WritetimeError

Verdict = Literal["good", "undecodable", "damaged", "unreadable"]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A path or file that is not a readable segment, with the error."""

    name: str
    error: WritetimeError

    @property
    def verdict(self) -> Verdict:
        return "unreadable"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"segment": self.name, "verdict": self.verdict, "error": self.error.as_dict()}


@dataclass(slots=True)
class Findings:
    """Findings about one segment. `size` is the file's in bytes; `end` and positions refer to the
    uncompressed segment; tables are listed by label."""

    name: str
    version: int
    codec: str
    size: int
    sections: int
    frames: int
    end: int
    ending: str
    idx: str
    updates: Counter[str] = field(default_factory=Counter)
    captured: set[str] = field(default_factory=set)
    unknown_tables: Counter[str] = field(default_factory=Counter)
    unknown_columns: int = 0
    malformed: int = 0
    failures: list[Failure] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        if self.problems:
            return "damaged"
        return "undecodable" if self.failures else "good"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        failed = [{"position": each.frame.position, **each.error.as_dict()} for each in self.failures]
        return {
            "segment": self.name,
            "verdict": self.verdict,
            "version": self.version,
            "codec": self.codec,
            "size": self.size,
            "sections": self.sections,
            "frames": self.frames,
            "end": self.end,
            "ending": self.ending,
            "idx": self.idx,
            "updates": {name: {"count": count, "cdc": name in self.captured} for name, count in sorted(self.updates.items())},
            "unknown_tables": dict(sorted(self.unknown_tables.items())),
            "unknown_columns": self.unknown_columns,
            "malformed": self.malformed,
            "problems": self.problems,
            "undecoded": failed,
        }


def examine(
    name: str,
    found: Scan,
    index: bytes | None,
    decoded: Iterable[tuple[Frame, Mutation | Failure]],
    schema: Schema,
    cdc_ever: Collection[UUID],
) -> Findings:
    """Examine a scanned segment. `index` is the content of its `_cdc.idx`, None if there is none; `decoded`
    is the result of `mutation_json.decode` for all its frames with `schema`."""
    findings = Findings(
        name=name,
        version=found.descriptor.version,
        codec=found.descriptor.codec or "plain",
        size=len(found.file),
        sections=_sections(found),
        frames=len(found.frames),
        end=found.end,
        ending=str(found.ending),
        idx=_judge_index(index, found),
        problems=[
            {"kind": each.kind, "position": each.position, "in_file": each.in_file, "size": each.size, "message": each.error.message}
            for each in found.problems
        ],
    )
    for _, mutation in decoded:
        if isinstance(mutation, Failure):
            _count_failure(findings, mutation)
        else:
            _count_updates(findings, mutation, schema, cdc_ever)
    return findings


def _count_failure(findings: Findings, failure: Failure) -> None:
    findings.failures.append(failure)
    if isinstance(failure.error, UnknownTable):
        findings.unknown_tables[failure.error.table_id] += 1
    elif isinstance(failure.error, UnknownColumn):
        findings.unknown_columns += 1
    else:
        findings.malformed += 1


def _count_updates(findings: Findings, mutation: Mutation, schema: Schema, cdc_ever: Collection[UUID]) -> None:
    for update in mutation.updates:
        label = schema.tables[update.table_id].label
        findings.updates[label] += 1
        if update.table_id in cdc_ever:
            findings.captured.add(label)


def _sections(found: Scan) -> int:
    """The number of sync markers that are linked from the header."""
    _, pos = parse_header(found.file)
    seed = sections.id_crc(found.descriptor.id)
    count = 0
    while sections.is_marker(found.image, len(found.image), seed, pos):
        count += 1
        pos, _ = sections.parse_marker(found.image, pos)
    return count


def _judge_index(content: bytes | None, found: Scan) -> str:
    state, index = idx.state(content, found.end), idx.parse(content or b"")
    if index is not None and state is idx.State.GROWING:
        return f"growing, synced to {index.synced}"
    if index is not None and state is idx.State.OFF:
        return f"completed, but says {index.synced}: written anew after a crash"
    return str(state)
