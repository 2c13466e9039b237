"""Reads the damaged segments with Cassandra's own reader too, and checks that it delivers nothing that we do
not deliver.

    python -m proof.fuzz.against_java --cases 5000         what `make fuzz-java` runs; needs what a Cassandra node needs

Strategy: one JVM reads each case with Cassandra's CommitLogReader (`proof.decoder.judge`), tolerant of
errors. Every mutation that it delivers must be one of ours, at the same position and with the same bytes, and
equal if both decode it. We may deliver more: after damage Cassandra stops where we find the next sync marker.
If the fuzzer corrected CRCs, we may also reject what Java accepts: `stricter` counts that, by reason.
"""

from __future__ import annotations

import json
import re
import signal
import struct
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid

from proof.fuzz.cases import Case, make
from proof.fuzz.corpus import EVERYTHING, KEYS_ONLY, TYPES, Corpus, corpus
from proof.fuzz.run import Failure, keep
from proof.harness.cassandra import VERSIONS, version_of
from proof.recording.recording import Recording
from tests.cassandra.commitlog.packed import KEYS
from tests.cassandra.schema.examples import change, create_keyspace, create_table, schema_row
from tools import ROOT
from tools.errors import ServiceError
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.mutation import EPOCHS_VERSION, decode_mutation
from writetime.cassandra.commitlog.mutation_json import Lines, learn
from writetime.cassandra.commitlog.segment import Scan, scan
from writetime.cassandra.model import NO_TIMESTAMP
from writetime.cassandra.schema.history import SchemaLearner
from writetime.cassandra.schema.model import Schema, UserType
from writetime.cassandra.schema.system_tables import TABLES
from writetime.errors import DecodeError, SegmentError

T = 1_700_000_000_000_000
RELEASED = VERSIONS[0]
_LAST_OF_2038 = 2**31 - 1
ADDR = UserType("k", "addr", ("street", "zip"), ("text", "int"))
"""Of a table of the corpus; on the wire it looks the same whatever it holds."""


class Differs(AssertionError):
    """Java delivers something that we do not, or something else."""


def teaching_folder(folder: Path, material: Corpus) -> SchemaLearner:
    """Write segments that teach the schema of the corpus, for either side to learn from; what we have
    learnt."""
    from tests.cassandra.commitlog.examples import TABLES as EXAMPLES

    for staged in Recording.open().stage(folder / "staged").values():
        for path in staged.glob("*.log"):
            path.rename(folder / path.name)
    system = Schema(tables=dict(TABLES))
    known = (*TYPES.values(), ADDR)
    types = [schema_row("types", (t.name,), T, {"field_names": t.field_names, "field_types": t.field_types}) for t in known]
    taught = [create_keyspace("k", T), change("k", types=types), *(create_table(t, T) for t in (*EXAMPLES, EVERYTHING, KEYS_ONLY))]
    (folder / "CommitLog-7-1.log").write_bytes(encode_segment(1, 7, [encode_mutation(mutation, system) for mutation in taught]))
    learner = SchemaLearner()
    for path in sorted(folder.glob("*.log")):
        learn(scan(path.read_bytes(), name=path.name), learner)
    return learner


class Differential:
    """Compares case by case; `seen` counts."""

    def __init__(self, learner: SchemaLearner) -> None:
        self.schema = learner.schema()
        self.lines = Lines(self.schema, learner.cdc_ever)
        self.seen: Counter[str] = Counter()
        self.of_nodes = {body for start in corpus().seeds if not start.name.startswith("made") for body in start.frames.values()}

    def compare(self, case: Case, delivered: list[dict[str, Any]]) -> None:
        """Raises Differs."""
        ours = self._ours(case)
        self.seen["mutations of Java's"] += len(delivered)
        at = {} if ours is None else {frame.position: frame for frame in ours.frames}
        self.seen["frames of ours"] += len(at)
        for line in delivered:
            frame = at.get(line["pos"])
            crc = line.pop("crc")
            if why := self._elsewhere(case, ours, line, crc):
                self.seen[why] += 1
                continue
            if ours is None or frame is None:
                raise Differs(f"Java delivers a mutation of {line['size']} bytes at {line['pos']}, we have none there")
            body = ours.body(frame)
            if zlib.crc32(body) != crc or len(body) != line["size"]:
                raise Differs(f"Java delivers other bytes at {line['pos']}")
            try:
                mutation = decode_mutation(body, self.schema, version=ours.descriptor.version)
            except DecodeError as error:
                if case.may_deliver is not None:
                    raise Differs(f"Java decodes what was never damaged, and we do not: {error}") from error
                self.seen[f"stricter: {re.sub('[0-9]+', 'n', error.message)[:60]}"] += 1
                continue
            if len({self.schema.tables[update.table_id].keyspace for update in mutation.updates}) > 1:
                self.seen["of several keyspaces at once, which no node writes"] += 1
                continue
            mine = json.loads(self.lines.line(ours, frame, mutation))
            if mine == line:
                self.seen["mutations that both decode, equal"] += 1
            elif case.may_deliver is not None and body in self.of_nodes:
                raise Differs(_both(line, mine))
            else:
                self._explained(_without_late(line), _without_late(mine))

    def _elsewhere(self, case: Case, ours: Scan | None, line: dict[str, Any], crc: int) -> str | None:
        """Why we need not have a mutation of Java's at its place, if we need not."""
        if ours is None:
            return "of a header that only Java takes" if case.may_deliver is None else None
        if not any(problem.in_file for problem in ours.problems) or any(frame.position == line["pos"] for frame in ours.frames):
            return None
        if any(frame.body_length == line["size"] and zlib.crc32(ours.body(frame)) == crc for frame in ours.frames):
            return "at another place, for Java does not count a section that does not unpack"
        if ours.descriptor.codec == "NoopCompressor":
            return "in a section that is not compressed and whose length is wrong, which only Java takes"
        return None

    def _explained(self, java: dict[str, Any], mine: dict[str, Any]) -> None:
        """Java reconciles a mutation while it reads it; we leave that to the join. Of what no node writes,
        that can be seen.

        So all that Java says must be said by us, and what only we say must be shadowed by a deletion of the
        same row.
        """
        said = _both(java, mine)
        if {**java, "updates": 0} != {**mine, "updates": 0} or len(java["updates"]) != len(mine["updates"]):
            raise Differs(said)
        for theirs, ours in zip(java["updates"], mine["updates"], strict=True):
            if any(theirs.get(name) != ours.get(name) for name in ("table", "id", "epoch", "pdel")):
                raise Differs(said)
            if theirs.get("rts") != ours.get("rts"):
                self.seen["ranges that Java puts in order"] += 1
            facts, known = _facts(theirs), _facts(ours)
            if facts - known:
                raise Differs(f"{said}\nonly Java says {sorted(facts - known, key=str)}")
            if alone := [fact for fact in known - facts if not _is_shadowed(fact, known)]:
                raise Differs(f"{said}\nonly we say {alone}")
        self.seen["mutations that both decode, but for what a deletion in them shadows"] += 1

    def _ours(self, case: Case) -> Scan | None:
        try:
            return scan(case.content, keys=KEYS)
        except SegmentError:
            return None


def _both(java: dict[str, Any], mine: dict[str, Any]) -> str:
    return f"at {java['pos']} Java says\n{json.dumps(java)}\nand we say\n{json.dumps(mine)}"


def _without_late(said: Any) -> Any:
    """The same with every time of a deletion past 2038 alike: Java reads those as invalid, whatever the
    version, we as what they are.
    """
    if isinstance(said, list):
        return [_without_late(item) for item in said]
    if not isinstance(said, dict):
        return said
    late = {"ts", "ldt"} <= said.keys() and not {"ttl", "tombstone"} & said.keys() and said["ldt"] > _LAST_OF_2038
    return {name: "late" if late and name == "ldt" else _without_late(value) for name, value in said.items()}


Fact = tuple[Any, ...]
"""(row's clustering, or None for the static row; what; column; timestamp; everything else as text)."""


def _facts(update: dict[str, Any]) -> set[Fact]:
    """All that is said of the rows of an update."""
    facts: set[Fact] = set()
    for row in [*update["rows"], *([update["static"]] if "static" in update else [])]:
        where = tuple(row["ck"]) if "ck" in row else None
        for name in ("live", "del"):
            if name in row:
                facts.add((where, name, None, row[name]["ts"], json.dumps(row[name])))
        for cell in row["cells"]:
            deletion = cell.get("complexDeletion")
            timestamp = cell["ts"] if deletion is None else deletion["ts"]
            facts.add((where, "cell" if deletion is None else "complex", cell["col"], timestamp, json.dumps(cell)))
    return facts


def _is_shadowed(fact: Fact, known: set[Fact]) -> bool:
    """Whether a deletion of the fact's row, or of its column, deletes it; or its timestamp is the one that
    means that there is none.
    """
    where, _, column, timestamp, _ = fact
    if timestamp == NO_TIMESTAMP:
        return True
    deletions = [other for other in known if other is not fact and other[0] == where and timestamp <= other[3]]
    return any(other[1] == "del" or (other[1] == "complex" and other[2] == column) for other in deletions)


MOST_SECONDS = 5
"""After so long in one file Java hangs, and is ended."""
MOST_SECONDS_TO_START = 120


@contextmanager
def _reader(folder: Path, version: str) -> Iterator[Any]:
    from proof.decoder.judge import Judge

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    try:
        with Judge(version).each(folder) as read:
            yield read
    finally:
        signal.signal(signal.SIGALRM, before)


def _asked(read: Any, path: Path, seconds: int = MOST_SECONDS) -> list[dict[str, Any]]:
    """What Java delivers of a file. TimeoutError if it does not come to an end."""
    signal.alarm(seconds)
    try:
        return list(read(path).lines)
    finally:
        signal.alarm(0)


def readable(version: str) -> Corpus:
    """The corpus without segments that the reader of that Cassandra does not know."""
    known = [start for start in corpus().seeds if start.version < EPOCHS_VERSION or version >= "6."]
    return replace(corpus(), seeds=known)


def run(cases: int, seed: int, differential: Differential, folder: Path, place: Path, version: str = RELEASED) -> list[Failure]:
    """Cases 0 .. cases-1, read by the reader of that version; what differed."""
    material, failures = readable(version), []
    numbers = iter(track(range(cases), "asking Java"))
    number = next(numbers, None)
    while number is not None:
        with _reader(folder, version) as read:
            # A valid segment first: a judge that cannot start must not look like one that died of damage.
            _expect_all(material, read, place)
            while number is not None:
                case = make(material, seed, number)
                try:
                    differential.compare(case, _asked(read, _written(place, case)))
                except Differs as error:
                    failures.append(Failure(seed, number, "differs", str(error), list(case.how), case.seed.name))
                except (ServiceError, TimeoutError) as error:
                    # Huge lengths may end the JVM, which allocates them. The next case gets a new one.
                    differential.seen["Java hung" if isinstance(error, TimeoutError) else "Java died"] += 1
                    number = next(numbers, None)
                    break
                differential.seen["cases"] += 1
                number = next(numbers, None)
    return failures


def _expect_all(material: Corpus, read: Any, place: Path) -> None:
    """ServiceError, let through, if the judge does not deliver a segment that is in order."""
    start = next(start for start in material.seeds if start.name.startswith("recorded shop.orders"))
    whole = Case(0, start, start.content, (), None, True, None)
    assert [line["pos"] for line in _asked(read, _written(place, whole), MOST_SECONDS_TO_START)] == list(start.frames)


def _written(place: Path, case: Case) -> Path:
    """The case as a file, by the name that it had before it was damaged."""
    version, segment_id = struct.unpack_from(">iq", case.seed.content)
    path = place / f"CommitLog-{version}-{segment_id}.log"
    path.write_bytes(case.content)
    return path


def main(
    cases: Annotated[int, typer.Option(help="How many cases.")] = 5_000,
    seed: Annotated[int, typer.Option(help="What the cases are made from.")] = 1,
    version: Annotated[str, typer.Option(help="Version of Cassandra whose reader is asked; only 6.0 reads version 9.")] = RELEASED,
    as_json: Annotated[Path | None, typer.Option("--json", help="Write the counts there, too.")] = None,
) -> None:
    """Compare, and print what came of it. Exit code 1 if anything differed."""
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder, place = Path(temporary) / "teaching", Path(temporary) / "cases"
        folder.mkdir()
        place.mkdir()
        differential = Differential(teaching_folder(folder, corpus()))
        failures = run(cases, seed, differential, folder, place, version_of(version))
    for failure in failures[:20]:
        path = keep(failure, ROOT / "var" / "fuzz")
        console.print(f"case {failure.number} ({', '.join(failure.how)}, from {failure.start}): {failure.message}", markup=False)
        console.print(f"  kept as {path}", markup=False)
    grid = Grid("what", "times")
    for name, count in sorted(differential.seen.items()):
        grid.add_row(name, f"{count:,}")
    console.print(grid)
    console.print(f"{differential.seen['cases']:,} cases of seed {seed}: {len(failures)} differ")
    if as_json is not None:
        as_json.write_text(json.dumps({"seed": seed, "differ": len(failures), "seen": dict(differential.seen)}, indent=1), encoding="utf-8")
    raise typer.Exit(1 if failures else 0)


if __name__ == "__main__":
    typer.run(main)
