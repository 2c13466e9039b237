"""The compiled walk: equal to the Python one on anything, compiled once, its arrays right."""

from __future__ import annotations

import ast
import os
import random
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cassandra.commitlog.examples import RANGES_TABLE, SCHEMA, insert, small_segment
from tests.examples import examples
from writetime.cassandra.commitlog import segment
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.segment import peek
from writetime.cassandra.model import Mutation
from writetime.kernels import compiled, crc, segment_walk
from writetime.kernels import merge as join_kernel
from writetime.kernels import values as cql_kernel

SEGMENT = small_segment(size=2048)
SEGMENT_ID = 0x1_0000_0007


def both(buf: bytes, length: int | None = None) -> tuple[object, object]:
    limit = len(buf) if length is None else length
    return segment.walk(buf, 20, limit, SEGMENT_ID), segment_walk.walk(buf, 20, limit, SEGMENT_ID).as_python()


changes = st.lists(st.tuples(st.integers(20, 800), st.binary(min_size=1, max_size=12)), max_size=5)


@settings(max_examples=examples(400))
@given(changes, st.integers(20, len(SEGMENT)), st.integers(20, len(SEGMENT)))
def test_both_walks_agree_on_any_damage(changes: list[tuple[int, bytes]], size: int, length: int) -> None:
    damaged = bytearray(SEGMENT)
    for position, content in changes:
        damaged[position : position + len(content)] = content
    in_python, in_machine_code = both(bytes(damaged[:size]), min(size, length))
    assert in_python == in_machine_code


@pytest.mark.thorough
@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 239), unique=True, min_size=60, max_size=240), st.integers(-2, 12), st.integers(0, 400))
def test_both_walks_agree_on_very_many_damaged_places(broken: list[int], where: int, cut: int) -> None:
    """On both sides of the number up to which each is listed, with torn tails and without."""
    whole = encode_segment(SEGMENT_ID, 7, [encode_mutation(insert(key), SCHEMA) for key in range(240)], per_section=50)
    damaged = bytearray(whole)
    for at in broken:
        damaged[segment.walk(whole, 20, len(whole), SEGMENT_ID)[0][at].start + (where if where >= 0 else 0)] ^= 4
    in_python, in_machine_code = both(bytes(damaged[: len(damaged) - cut]))
    assert in_python == in_machine_code


@settings(max_examples=examples(200))
@given(st.binary(max_size=300))
def test_both_walks_agree_on_any_bytes(content: bytes) -> None:
    in_python, in_machine_code = both(SEGMENT[:28] + content)
    assert in_python == in_machine_code


@settings(max_examples=examples(200))
@given(st.integers(0, 700), st.integers(0, 700))
def test_both_walks_agree_on_moved_pieces(source: int, target: int) -> None:
    """Valid markers and frames at wrong positions, where their CRCs do not match."""
    moved = SEGMENT[: 20 + target] + SEGMENT[20 + source : 20 + source + 120] + SEGMENT[20 + target + 100 :]
    in_python, in_machine_code = both(moved)
    assert in_python == in_machine_code


@pytest.mark.parametrize("version", [7, 9])
def test_arrays_tell_what_peek_tells(version: int) -> None:
    epochs = [0, 1, 127, 128, 2**31, 2**48 - 1] * 4
    mutations = [Mutation((replace(insert(i).updates[0], epoch=epoch),), i % 2) for i, epoch in enumerate(epochs)]
    bodies = [encode_mutation(mutation, SCHEMA, version=version) for mutation in mutations]
    content = encode_segment(3, version, bodies, per_section=6)
    walk = segment_walk.walk(content, 20, len(content), 3, version=version)
    for i, body in enumerate(bodies):
        count, table_id, key = peek(body, version=version)
        assert (int(walk.table_hi[i]) << 64 | int(walk.table_lo[i])) == table_id.int == RANGES_TABLE.id.int
        assert walk.update_count[i] == count
        assert content[walk.key_offset[i] : walk.key_offset[i] + walk.key_length[i]] == key
    assert walk.end == len(content)


def test_a_body_that_cannot_be_peeked_into_is_marked() -> None:
    body = encode_mutation(insert(1), SCHEMA)
    bodies = [body, body[:17], body[:17] + b"\x7f", b"\xff" * 12, body[:17] + b"\xff" * 9]
    content = encode_segment(3, 7, bodies)
    walk = segment_walk.walk(content, 20, len(content), 3)
    assert walk.update_count.tolist() == [1, -1, -1, -1, -1]
    assert walk.key_length.tolist() == [4, 0, 0, 0, 0]


def test_a_body_with_epochs_that_cannot_be_peeked_into_is_marked() -> None:
    body = encode_mutation(insert(1), SCHEMA, version=9)
    longest_epoch = body[:18] + b"\xff" * 9 + body[19:]
    bodies = [longest_epoch, body[:18], body[:18] + b"\xc0", body[:19] + b"\x7f", b"\0" + b"\xff" * 12]
    content = encode_segment(3, 9, bodies)
    walk = segment_walk.walk(content, 20, len(content), 3, version=9)
    assert walk.update_count.tolist() == [1, -1, -1, -1, -1]
    assert walk.key_length.tolist() == [4, 0, 0, 0, 0]
    assert peek(longest_epoch, version=9) == peek(body, version=9)


def test_more_problems_than_there_is_room_for_at_first() -> None:
    content = bytearray(encode_segment(3, 7, [bytes(10) + b"\1" for _ in range(3000)]))
    for frame in segment.scan(bytes(content), engine="python").frames:
        content[frame.body_offset] ^= 1
    in_python = segment.walk(bytes(content), 20, len(content), 3)
    walked = segment_walk.walk(bytes(content), 20, len(content), 3)
    assert len(walked.problem_position) == 3000
    assert walked.as_python() == in_python


@pytest.mark.parametrize("clmul", sorted({False, crc.HAS_CLMUL}))
def test_crc(clmul: bool) -> None:
    """Of any length, from any place, with the CPU's multiplication and without."""
    data = np.frombuffer(random.Random(1).randbytes(400), np.uint8)
    for start in (0, 1, 13):
        for end in range(start, len(data)):
            found = crc.crc32(data, start, end, zlib.crc32(b"before"), clmul)
            assert found == zlib.crc32(data[start:end].tobytes(), zlib.crc32(b"before"))


def test_a_cpu_without_multiplication_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cache serves both: the machine code holds both ways."""
    content = encode_segment(3, 7, [encode_mutation(insert(i, "x" * 10 * i), SCHEMA) for i in range(30)])
    here = segment_walk.walk(content, 20, len(content), 3).as_python()
    monkeypatch.setattr(segment_walk, "HAS_CLMUL", False)
    assert segment_walk.walk(content, 20, len(content), 3).as_python() == here == segment.walk(content, 20, len(content), 3)


@pytest.mark.thorough
def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    """The first process fills the cache, for a plain CPU; the second finds all of it there."""
    program = (
        "from writetime.kernels import segment_walk as kernel; kernel.compile_ahead();"
        "import numba; assert numba.config.CPU_NAME == 'generic', numba.config.CPU_NAME;"
        "stats = kernel._walk.stats; print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))"
    )
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    env.pop("NUMBA_CPU_NAME", None)
    command = [sys.executable, "-c", program]
    runs = [subprocess.run(command, env=env, check=True, capture_output=True, text=True) for _ in range(2)]
    assert [run.stdout.split() for run in runs] == [["0", "1"], ["1", "0"]]
    after_numba = [sys.executable, "-c", f"import numba; {program}"]
    assert subprocess.run(after_numba, env=env, check=True, capture_output=True, text=True).stdout.split() == ["1", "0"]


def double(n: int) -> int:
    return 2 * n


def test_machine_code_is_no_older_than_what_went_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numba looks at the file of the outermost function only."""

    def hits() -> int:
        kept: Any = compiled.compiled_and_kept(double)
        assert kept(21) == 42
        return sum(kept.stats.cache_hits.values())

    # numba looks into the environment again when it compiles.
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert [hits(), hits()] == [0, 1]
    monkeypatch.setattr(compiled, "sources_digest", lambda: "of other sources")
    assert [hits(), hits()] == [0, 1]


@pytest.mark.parametrize(
    ("names", "sources"),
    [
        (("mutation_kernel", "compiled", "crc", "segment_walk", "pointers"), ()),
        (("merge", "pack", "rows", "projection_kernel"), (*join_kernel.SOURCES, "cassandra/merge/reconcile.py")),
        (("values",), cql_kernel.SOURCES),
    ],
)
def test_the_digest_covers_what_compiled_modules_import(names: tuple[str, ...], sources: tuple[str, ...]) -> None:
    """Of `reconcile` the join's kernel takes nothing that is compiled."""
    package = Path(compiled.__file__).parents[1]
    for name in names:
        nodes = ast.walk(ast.parse((package / "kernels" / f"{name}.py").read_text(encoding="utf-8")))
        for node in (node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("writetime.")):
            inside = str(node.module).removeprefix("writetime.").replace(".", "/")
            files = [f"{inside}.py"] if (package / f"{inside}.py").exists() else [f"{inside}/{alias.name}.py" for alias in node.names]
            assert set(files) <= {*compiled.SOURCES, *sources}


def test_without_a_folder_to_write_to_it_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(double)
    assert compiled.compiled_and_kept(double)(21) == 42


@pytest.mark.parametrize(("start", "length"), [(20, 101), (-1, 100), (20, -1), (20, 1 << 40)])
def test_bytes_that_are_not_there_are_refused(start: int, length: int) -> None:
    with pytest.raises(ValueError, match="of 100"):
        segment_walk.walk(bytes(100), start, length, 1)


@pytest.mark.thorough
def test_the_command_says_how_long_it_took(tmp_path: Path) -> None:
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "writetime.kernels.segment_walk"]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert done.stdout.startswith("segment kernel ready in ")
    assert list(tmp_path.rglob("segment_walk._walk*.nbc"))


def test_the_core_imports_neither_numba_nor_numpy_by_itself() -> None:
    modules = "descriptor, mutation_json, encode, frames, idx, mutation, sections, segment"
    program = (
        f"from writetime.cassandra.commitlog import {modules}; import writetime.events.arrow, writetime.cassandra.schema.history, sys;"
    )
    program += "print([name for name in ('numba', 'numpy', 'pyarrow') if name in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
