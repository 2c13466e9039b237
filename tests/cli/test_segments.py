"""The commands dump, verify and schema: what goes to stdout, what to stderr, and the code at the end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.cassandra.commitlog import packed
from tests.cassandra.commitlog.examples import (
    RANGES_TABLE,
    SCHEMA,
    STATICS_BODY,
    STATICS_TABLE,
    TTL_FRAME,
    TTL_TABLE,
    body_of,
    delete_range,
    insert,
)
from tests.cassandra.commitlog.test_system_mutations import later
from tests.cassandra.schema.examples import (
    change,
    column_row,
    create_keyspace,
    create_table,
    schema_row,
    table_rows,
)
from writetime import cli
from writetime.cassandra.commitlog.encode import encode_mutation, encode_segment
from writetime.cassandra.commitlog.encryption.keystore import Keystore
from writetime.cassandra.model import (
    Cell,
    DeletionTime,
    Liveness,
    Mutation,
    PartitionUpdate,
    Row,
)
from writetime.cassandra.schema.model import Column, Schema
from writetime.cassandra.schema.system_tables import LOCAL, TABLES
from writetime.storage import segment_object

T = 1_700_000_000_000_000
CAPTURED = replace(RANGES_TABLE, cdc=True)
ADDR = change("k", types=[schema_row("types", ("addr",), T, {"field_names": ["street"], "field_types": ["text"]})])
SYSTEM = Schema(tables=dict(TABLES))
BATCH = Mutation((*insert(3).updates, PartitionUpdate(TTL_TABLE.id, b"\0\0\0\3", rows=(Row((), Liveness(T)),))))
Run = Callable[..., tuple[int, str, str]]


def body(mutation: Mutation) -> bytes:
    return encode_mutation(mutation, Schema(tables={**SCHEMA.tables, **TABLES}))


DDL = [body(m) for m in (create_keyspace("k", T), ADDR, *(create_table(t, T) for t in (CAPTURED, STATICS_TABLE, TTL_TABLE)))]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line; (code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = cli.main([str(argument) for argument in arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two finished segments of one node: the second tells the schema of the first."""
    write(tmp_path, 9, [body(insert(1, "a")), body(delete_range(2)), STATICS_BODY, body_of(TTL_FRAME), body(BATCH)])
    write(tmp_path, 10, [*DDL, body(insert(1, "b", T + 1))])
    return tmp_path


def write(folder: Path, segment_id: int, bodies: list[bytes], *, idx: str | None = None, per_section: int = 2) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"CommitLog-7-{segment_id}.log"
    path.write_bytes(encode_segment(segment_id, 7, bodies, per_section=per_section, size=1 << 16))
    if idx is not None:
        (folder / f"CommitLog-7-{segment_id}_cdc.idx").write_text(idx)
    return path


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def shown(out: str) -> list[tuple[int, list[str]]]:
    """(segment, tables) of each line."""
    return [(line["seg"], [update["table"] for update in line["updates"]]) for line in lines(out)]


# --- dump


def test_only_captured_tables_unless_asked(run: Run, folder: Path) -> None:
    code, out, err = run("dump", "--json", folder)
    assert code == 0
    assert shown(out) == [(9, ["rt"]), (9, ["rt"]), (9, ["rt"]), (10, ["rt"])]
    assert [line["cdc"] for line in lines(out)] == [True] * 4
    assert "updates of" in err
    assert "--all-tables" in err
    code, out, err = run("dump", "--json", "--all-tables", folder)
    assert code == 0
    assert shown(out)[:5] == [(9, ["rt"]), (9, ["rt"]), (9, ["clust"]), (9, ["dttl"]), (9, ["rt", "dttl"])]
    assert len(shown(out)) == 5 + len(DDL) + 1
    assert "left out" not in err


def test_by_table(run: Run, folder: Path) -> None:
    assert shown(run("dump", "--json", "--table", "k.rt", folder)[1]) == [(9, ["rt"])] * 3 + [(10, ["rt"])]
    assert shown(run("dump", "--json", "--table", RANGES_TABLE.id, folder)[1]) == [(9, ["rt"])] * 3 + [(10, ["rt"])]
    both = run("dump", "--json", "--all-tables", "--table", "k.dttl", "--table", 'k."clust"', folder)[1]
    assert shown(both) == [(9, ["clust"]), (9, ["dttl"]), (9, ["dttl"])]
    code, out, err = run("dump", "--table", "k.dttl", folder)
    assert (code, out) == (2, "")
    assert "--all-tables" in err
    code, _, err = run("dump", "--table", "k.nope", folder)
    assert code == 2
    assert "k.nope" in err


@pytest.mark.parametrize(
    ("arguments", "segments"),
    [
        (["--key", "1"], [9, 10]),
        (["--key", "0x00000001"], [9, 10]),
        (["--key", "1", "--key", "2"], [9, 9, 10]),
        (["--key", "77"], []),
        (["--all-tables", "--table", "k.clust", "--key", "y:1"], [9]),
        (["--all-tables", "--table", "k.clust", "--key", "'y' : 1"], [9]),
        (["--all-tables", "--table", "k.clust", "--key", "0x00017900000400000001 00"], [9]),
        (["--all-tables", "--table", "k.clust", "--key", "'y:1':1"], []),
    ],
)
def test_by_key(run: Run, folder: Path, arguments: list[str], segments: list[int]) -> None:
    code, out, _ = run("dump", "--json", *arguments, folder)
    assert code == 0
    assert [line["seg"] for line in lines(out)] == segments


@pytest.mark.parametrize("key", ["one", "1:2", "0xxyz", "'y'1"])
def test_keys_that_no_table_can_have(run: Run, folder: Path, key: str) -> None:
    code, out, err = run("dump", "--table", "k.rt", "--key", key, folder)
    assert (code, out) == (2, "")
    assert "--key" in err


def test_an_older_life_of_a_table_by_its_name_in_the_dump(run: Run, tmp_path: Path) -> None:
    again = replace(CAPTURED, id=UUID("22222222-e583-11f1-817f-f173fd8e050e"))
    write(tmp_path, 1, [body(insert(1)), *DDL, body(create_table(again, T + 5))])
    (line,) = lines(run("dump", "--json", tmp_path)[1])
    assert line["updates"][0]["table"] == "rt_OLD_6c60b670"
    assert len(lines(run("dump", "--json", "--table", "k.rt_OLD_6c60b670", tmp_path)[1])) == 1
    assert len(lines(run("dump", "--json", "--table", "k.rt", tmp_path)[1])) == 1
    assert run("dump", "--json", "--table", again.id, tmp_path)[1] == ""


def test_for_people(run: Run, folder: Path) -> None:
    code, out, _ = run("dump", "--all-tables", folder / "CommitLog-7-9.log", folder / "CommitLog-7-10.log")
    assert code == 0
    blocks = out.split("\n\n")
    assert blocks[0] == (
        "2023-11-14 22:13:20.000000Z  CommitLog-7-9.log:93  (53 bytes)\nk.rt  p = 1\n  row c1 = 1, c2 = 1, c3 = 'x': written\n    v  'a'"
    )
    assert "  rows from c1 = 1 (included) to the last deleted" in blocks[1]
    assert "k.clust  a = 'y', b = 1\n  static row\n    s   deleted\n    sm  all before deleted" in blocks[2]
    assert "row: written, TTL 86400 to 2026-11-22 08:13:28Z\n    v  0" in blocks[3]
    assert "k.rt  p = 3\n" in blocks[4]
    assert "\nk.dttl  p = 3\n  row: written" in blocks[4]


def test_collections_and_deletions_for_people(run: Run, tmp_path: Path) -> None:
    rows = (
        Row((b"\0\0\0\1",), deletion=DeletionTime(T - 5, 1_700_000_000)),
        Row(
            (b"\0\0\0\2",),
            cells=(
                Cell("w", T, bytes(8), None, 60, 1_700_000_060),
                Cell("li", T, b"\0\0\0\7", TTL_TABLE.id.bytes),
                Cell("m", T, b"\0\0\0\7", b"it's"),
                Cell("st", T, b"", b"x"),
                Cell("u", T, b"Main St", b"\0\0"),
                Cell("ünï", T - 1, b"\0\0\0\1"),
            ),
            complex_deletions={"m": DeletionTime(T - 1, 1_700_000_000)},
        ),
    )
    update = PartitionUpdate(STATICS_TABLE.id, bytes.fromhex("0001790000040000000100"), DeletionTime(T - 9, 1_700_000_000), rows=rows)
    write(tmp_path, 1, [*DDL, body(Mutation((update,)))])
    block = run("dump", "--all-tables", "--table", "k.clust", tmp_path)[1]
    for line in [
        "  partition deleted  @ 2023-11-14 22:13:19.999991Z",
        "  row c = 1: deleted  @ 2023-11-14 22:13:19.999995Z",
        f"    li[{TTL_TABLE.id}]  7",
        "    m                                         all before deleted  @ 2023-11-14 22:13:19.999999Z\n    m['it''s']",
        "    st['x']                                   in the set",
        "    u.street                                  'Main St'",
        "    w                                         0  TTL 60 to 2023-11-14 22:14:20Z",
        '    "ünï"                                     1  @ 2023-11-14 22:13:19.999999Z',
    ]:
        assert line in block


def test_frames_that_do_not_decode_are_told_on_stderr_alone(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, 1, [DDL[0], DDL[2], body_of(TTL_FRAME), body(insert(1))])
    code, out, err = run("dump", "--json", "--all-tables", tmp_path)
    assert code == 0
    assert len(lines(out)) == 3
    (told,) = [line for line in err.splitlines() if "UnknownTable" in line]
    assert told.startswith(f"{path}:")
    assert str(TTL_TABLE.id) in told
    assert "CREATE TABLE" in told
    assert "not decoded: 1" in err.splitlines()[-1]
    assert run("dump", "--json", "--strict", tmp_path)[0] == 3
    assert run("dump", "--json", "--strict", "--table", "k.rt", "--key", "1", path)[0] == 3


def test_a_missing_schema_does_not_bury_the_rest(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, 1, [DDL[0], *[body_of(TTL_FRAME)] * 9, STATICS_BODY])
    code, out, err = run("dump", "--json", path)
    assert (code, out) == (3, "")  # Nothing decodes: that is no answer.
    assert [str(TTL_TABLE.id) in line for line in err.splitlines()] == [True, True, True, False, True, False, False]
    assert f"6 more: UnknownTable: no schema is known for table id {TTL_TABLE.id}" in err
    assert "--schema" in err
    assert err.splitlines()[-1].endswith("not decoded: 10")
    (found,) = lines(run("verify", "--json", path)[1])
    assert len(found["undecoded"]) == 10


def test_what_a_later_cassandra_has_in_its_schema_is_named_once(run: Run, tmp_path: Path) -> None:
    told = [later(create_table(table, at), {"lane": "text"}) for at, table in enumerate((CAPTURED, STATICS_TABLE), T)]
    write(tmp_path, 1, [DDL[0], DDL[1], *told, body(insert(1, "a"))])
    code, out, err = run("dump", "--json", tmp_path)
    assert (code, len(lines(out))) == (0, 1)
    (named,) = [line for line in err.splitlines() if "lane" in line]
    assert named.startswith("ignored fields of a newer Cassandra version: system_schema.columns.lane, ")
    assert "lane" in run("schema", tmp_path)[2]


def test_long_values_are_cut_for_people_alone(run: Run, tmp_path: Path) -> None:
    write(tmp_path, 1, [*DDL, body(insert(1, "é" * 20_000))], per_section=0)
    out = run("dump", tmp_path)[1]
    assert max(map(len, out.splitlines())) < 5000
    assert "… (40000 bytes; --json has them all)" in out
    assert "c3a9" * 20_000 in run("dump", "--json", tmp_path)[1]


@pytest.mark.advice("It can be decoded once its CREATE TABLE or a schema snapshot has been read")
def test_the_schema_may_come_from_elsewhere(run: Run, folder: Path, tmp_path: Path) -> None:
    """A snapshot, or what earlier segments taught (a batch's schema.json)."""
    columns = [
        {"keyspace_name": "k", "table_name": "dttl", "column_name": name, "kind": kind, "position": place, "type": "int", "writetime": T}
        for name, kind, place in [("p", "partition_key", 0), ("v", "regular", -1)]
    ]
    table = {"keyspace_name": "k", "table_name": "dttl", "id": str(TTL_TABLE.id), "flags": ["compound"], "writetime": T}
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps({"tables": [table], "columns": columns}))
    write(tmp_path / "alone", 1, [body_of(TTL_FRAME), body(insert(1))])
    arguments = ["dump", "--json", "--all-tables", "--schema", snapshot]
    assert shown(run(*arguments, tmp_path / "alone")[1]) == [(1, ["dttl"])]
    from writetime.cassandra.commitlog.mutation_json import learn
    from writetime.cassandra.commitlog.segment import scan
    from writetime.cassandra.schema.history import SchemaLearner

    learner = SchemaLearner()
    learn(scan((folder / "CommitLog-7-10.log").read_bytes(), engine="python"), learner)
    learnt = tmp_path / "schema.json"
    learnt.write_text(learner.to_json())
    assert shown(run("dump", "--json", "--schema", learnt, tmp_path / "alone")[1]) == [(1, ["rt"])]
    assert shown(run(*arguments, "--schema", learnt, tmp_path / "alone")[1]) == [(1, ["dttl"]), (1, ["rt"])]
    for wrong in ("[]", "{}", "{"):
        snapshot.write_text(wrong)
        code, _, err = run(*arguments, tmp_path / "alone")
        assert code == 1
        assert "snapshot.json" in err


def test_damage_and_unreadable_files_hold_up_nothing(run: Run, folder: Path) -> None:
    content = bytearray((folder / "CommitLog-7-9.log").read_bytes())
    content[80] ^= 1
    (folder / "CommitLog-7-9.log").write_bytes(content)
    (folder / "CommitLog-7-8.log").write_bytes(b"no segment at all")
    code, out, err = run("dump", "--json", folder, folder / "nowhere")
    assert code == 1
    assert len(lines(out)) == 3
    assert f"{folder}/CommitLog-7-9.log:28: CorruptFrame" in err
    assert "CommitLog-7-8.log" in err
    assert "nowhere" in err
    assert err.splitlines()[-1].endswith("unreadable: 2; damaged: 1")
    (folder / "CommitLog-7-8.log").unlink()
    assert run("dump", folder)[0] == 0
    assert run("dump", "--strict", folder)[0] == 3


def test_behind_the_synced_position_of_a_growing_segment(run: Run, tmp_path: Path) -> None:
    bodies = [body(insert(key)) for key in range(1, 7)]
    end_of_the_second = 20 + 8 + 2 * (len(bodies[0]) + 12)
    write(tmp_path, 1, DDL)
    write(tmp_path, 2, bodies, idx=str(end_of_the_second))
    assert len(lines(run("dump", "--json", tmp_path)[1])) == 6
    assert len(lines(run("dump", "--json", "--synced", tmp_path)[1])) == 2
    write(tmp_path, 2, bodies, idx=f"{end_of_the_second}\nCOMPLETED")
    assert len(lines(run("dump", "--json", "--synced", tmp_path)[1])) == 6


def test_cells_of_a_column_that_came_back_as_another_type(run: Run, tmp_path: Path) -> None:
    """The last schema has the name as a blob; the old cells have no length, and are read as they were
    written."""
    back = change("k", columns=[column_row("dttl", "v", T + 9, "regular", "blob")])
    write(tmp_path, 1, [*DDL, body_of(TTL_FRAME), body(back)])
    found = [line for line in lines(run("dump", "--json", "--all-tables", tmp_path)[1]) if line["ks"] == "k"]
    assert [line["updates"][0]["rows"][0]["cells"][0]["value"] for line in found] == ["00000000"]


def test_replicas_in_one_call(run: Run, folder: Path) -> None:
    """Each node's log in its own order; either teaches the other's schema."""
    write(folder / "other", 1, [body(insert(5)), body(insert(6))])
    code, out, _ = run("dump", "--json", folder)
    assert code == 0
    assert [line["seg"] for line in lines(out)] == [9, 9, 9, 10, 1, 1]


def test_nobody_reads_on(folder: Path) -> None:
    write(folder, 11, [body(insert(key % 100, "x" * 900)) for key in range(3000)], per_section=0)
    command = f"{sys.executable} -m writetime.cli dump --json {folder} | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    assert len(lines(done.stdout)) == 1
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


@pytest.mark.parametrize(("arguments", "code"), [(["dump"], 0), (["schema"], 0), (["verify"], 1), (["verify", "--json"], 1)])
def test_a_pipe_that_is_closed_ends_quietly_but_proves_nothing(folder: Path, arguments: list[str], code: int) -> None:
    """Nobody reads at all. `verify` that told nobody has not said that all is good."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "writetime.cli", *arguments, str(folder)]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False, cwd=Path(__file__).parents[2])
    os.close(write_end)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Broken" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux plays a full disk")
def test_a_full_disk_is_told(folder: Path) -> None:
    command = [sys.executable, "-m", "writetime.cli", "dump", "--json", str(folder)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 1
    assert "writetime: write the answer: stdout: No space left on device" in done.stderr.splitlines()
    assert "Traceback" not in done.stderr


def test_names_that_are_no_utf_8(run: Run, tmp_path: Path) -> None:
    name = b"\xffx".decode("utf-8", "surrogateescape")
    table = replace(TTL_TABLE, columns={**TTL_TABLE.columns, name: Column(name, "regular", "int")}, cdc=True)
    schema = Schema(tables={**TABLES, table.id: table})
    row = Row((), Liveness(T), cells=(Cell(name, T, b"\0\0\0\1"),))
    ddl = change(
        "k",
        tables=table_rows("dttl", table.id, T, cdc=True),
        columns=[column_row("dttl", "p", T, "partition_key", "int", 0), odd_column_row(b"\xffx")],
    )
    write(
        tmp_path,
        1,
        [encode_mutation(ddl, schema), encode_mutation(Mutation((PartitionUpdate(table.id, b"\0\0\0\1", rows=(row,)),)), schema)],
    )
    code, out, _ = run("dump", "--json", tmp_path)
    assert code == 0
    assert r'"\udcffx"' in out
    assert lines(out)[0]["updates"][0]["rows"][0]["cells"][0]["col"] == name
    assert run("dump", tmp_path)[0] == 0
    assert run("schema", tmp_path)[0] == 0


def odd_column_row(name: bytes) -> Row:
    row = column_row("dttl", "x", T, "regular", "int")
    return replace(row, clustering=(b"dttl", name))


def test_colours_are_for_terminals(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("dump", folder)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run("dump", folder)[1]
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize("packing", packed.PACKINGS)
def test_packed_segments(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    plain = encode_segment(5, 7, [*DDL, body(insert(1))], per_section=2)
    (tmp_path / "CommitLog-7-5.log").write_bytes(plain)
    expected = from_the_first_on(run("dump", "--json", "--all-tables", tmp_path)[1])
    (tmp_path / "CommitLog-7-5.log").write_bytes(packed.repack(plain, packing))
    arguments = ["dump", "--json", "--all-tables", tmp_path]
    if packing == "encrypted":
        code, out, err = run(*arguments)
        assert (code, out) == (1, "")
        assert "key" in err
        monkeypatch.setattr(Keystore, "from_environment", lambda path: packed.KEYS)
        arguments += ["--keystore", "keys.jks"]
    code, out, _ = run(*arguments)
    assert (code, from_the_first_on(out)) == (0, expected)


def test_segments_that_the_archive_has_packed(run: Run, tmp_path: Path) -> None:
    plain = encode_segment(5, 7, [*DDL, body(insert(1))], per_section=2)
    log = tmp_path / "CommitLog-7-5.log"
    log.write_bytes(plain)
    expected = [run(*command) for command in (["dump", "--json", "--all-tables", log], ["schema", log, "--at", "5:1000"])]
    assert expected[0][0] == 0
    stored = segment_object.pack(plain, 3)
    packed_log = tmp_path / "CommitLog-7-5.log.zst"
    log.rename(packed_log)
    packed_log.write_bytes(stored)
    at = f"{packed_log.name}:1000"
    told = [run(*command) for command in (["dump", "--json", "--all-tables", packed_log], ["schema", packed_log, "--at", at])]
    assert [(code, out.replace(".log.zst", ".log")) for code, out, _ in told] == [(code, out) for code, out, _ in expected]
    assert run("verify", packed_log)[0] == 0
    packed_log.write_bytes(stored[:-1])
    code, _, err = run("verify", packed_log)
    assert (code, "unpack a segment" in err) == (1, True)


def from_the_first_on(out: str) -> list[dict[str, Any]]:
    """Lines with positions counted from that of the first: headers are of different length."""
    found = lines(out)
    return [{**line, "pos": line["pos"] - found[0]["pos"]} for line in found]


def test_a_keystore_without_its_password(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WRITETIME_KEYSTORE_PASSWORD", raising=False)
    code, out, err = run("dump", "--keystore", folder / "keys.jks", folder)
    assert (code, out) == (2, "")
    assert "WRITETIME_KEYSTORE_PASSWORD" in err


def test_a_codec_whose_library_is_missing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "CommitLog-7-5.log").write_bytes(packed.repack(encode_segment(5, 7, DDL), "ZstdCompressor"))
    code, _, err = run("dump", tmp_path)
    assert code == 1
    assert "pyarrow" in err
    assert "writetime[spark]" in err


# --- verify


def test_good_segments(run: Run, folder: Path) -> None:
    (folder / "CommitLog-7-9_cdc.idx").write_text("10\nCOMPLETED")
    (folder / "CommitLog-7-10_cdc.idx").write_text("")
    code, out, err = run("verify", folder)
    assert code == 0
    assert "k.rt" in out
    assert err.splitlines() == ["segments: 2"]
    code, out, _ = run("verify", "--json", folder)
    first, second = lines(out)
    assert code == 0
    assert (first["verdict"], first["version"], first["codec"], first["sections"], first["frames"]) == ("good", 7, "plain", 3, 5)
    assert first["updates"] == {
        "k.clust": {"count": 1, "cdc": False},
        "k.dttl": {"count": 2, "cdc": False},
        "k.rt": {"count": 3, "cdc": True},
    }
    assert first["ending"] == "zeros"
    assert "after a crash" in first["idx"]
    assert (second["idx"], second["problems"], second["undecoded"]) == ("empty", [], [])


@pytest.mark.parametrize(
    ("idx", "said"), [("", "empty"), ("12\nCOMP", "half-written"), ("90", "growing, synced to 90"), ("{end}\nCOMPLETED", "completed")]
)
def test_the_idx_is_judged(run: Run, tmp_path: Path, idx: str, said: str) -> None:
    path = write(tmp_path, 1, DDL)
    (found,) = lines(run("verify", "--json", path)[1])
    assert found["idx"] == "none"
    (tmp_path / "CommitLog-7-1_cdc.idx").write_text(idx.replace("{end}", str(found["end"])))
    assert lines(run("verify", "--json", path)[1])[0]["idx"] == said


def test_damage_is_code_1_and_a_missing_schema_code_3(run: Run, folder: Path) -> None:
    path = folder / "CommitLog-7-9.log"
    code, out, err = run("verify", "--json", path)
    (found,) = lines(out)
    assert code == 3
    assert found["verdict"] == "undecodable"
    assert found["unknown_tables"] == {str(table.id): count for table, count in [(RANGES_TABLE, 3), (STATICS_TABLE, 1), (TTL_TABLE, 1)]}
    assert [failed["kind"] for failed in found["undecoded"]] == ["UnknownTable"] * 5
    assert err.count("UnknownTable") == 5
    assert str(RANGES_TABLE.id) in run("verify", path)[1]
    content = bytearray(path.read_bytes())
    content[80] ^= 1
    path.write_bytes(content)
    code, out, _ = run("verify", "--json", folder)
    assert code == 1
    damaged, good = lines(out)
    assert (damaged["verdict"], good["verdict"]) == ("damaged", "good")
    assert [problem["kind"] for problem in damaged["problems"]] == ["corrupt_frame"]
    assert run("verify", folder / "CommitLog-7-10.log", folder / "nowhere")[0] == 1


def test_what_cannot_be_read_is_named_with_the_rest(run: Run, folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "CommitLog-7-8.log").write_bytes(b"no segment at all")
    code, out, err = run("verify", "--json", folder, folder / "nowhere")
    assert code == 1
    found = {line["segment"]: line for line in lines(out)}
    assert {name: line["verdict"] for name, line in found.items()} == {
        f"{folder}/CommitLog-7-9.log": "good",
        f"{folder}/CommitLog-7-10.log": "good",
        f"{folder}/nowhere": "unreadable",
        f"{folder}/below/CommitLog-7-8.log": "unreadable",
    }
    assert found[f"{folder}/below/CommitLog-7-8.log"]["error"]["kind"] == "NotASegment"
    assert f"{folder}/below/CommitLog-7-8.log" in err
    assert f"unreadable   {folder}/nowhere: " in run("verify", folder, folder / "nowhere")[1]


@pytest.mark.parametrize("width", [40, 80])
def test_narrow_terminals_cost_no_digit(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    out = re.sub("\x1b\\[[0-9;]*m", "", run("verify", folder)[1])
    assert f"good         {folder}/CommitLog-7-9.log: version 7, plain, 65536 bytes, 3 sections, 5 frames, ends at" in out
    assert "…" not in out


def test_a_growing_segment_is_good_as_far_as_it_is_synced(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path, 1, DDL, per_section=1)
    (found,) = lines(run("verify", "--json", path)[1])
    content = bytearray(path.read_bytes())
    # The third section: half of it is written.
    third = 20 + sum(8 + 12 + len(ddl) for ddl in DDL[:2])
    content[third + 60 :] = bytes(len(content) - third - 60)
    path.write_bytes(content)
    assert run("verify", path)[0] == 1
    (tmp_path / "CommitLog-7-1_cdc.idx").write_text(str(third))
    code, out, _ = run("verify", "--json", path)
    assert code == 0
    assert (lines(out)[0]["ending"], lines(out)[0]["end"], lines(out)[0]["frames"]) == ("growing", third, 2)
    assert found["frames"] == len(DDL)


# --- schema


def test_what_the_log_teaches(run: Run, folder: Path) -> None:
    code, out, err = run("schema", folder)
    assert (code, err) == (0, "")
    assert "CREATE KEYSPACE k WITH" in out
    assert out.index("CREATE TYPE k.addr") < out.index("CREATE TABLE k.clust")
    assert "-- CommitLog-7-10.log:" in out
    assert f"table k.rt created, id {RANGES_TABLE.id}, cdc on" in out
    statements = [line for line in out.splitlines() if line and not line.startswith(("--", " ", ")"))]
    assert [line.split()[0] for line in statements] == ["CREATE"] * len(statements)


def test_the_schema_at_a_position(run: Run, tmp_path: Path) -> None:
    bodies = [*DDL, body(change("k", columns=[column_row("rt", "late", T + 9, "regular", "int")]))]
    write(tmp_path, 1, bodies)
    write(tmp_path, 2, [body(change("k", columns=[column_row("rt", "later", T + 10, "regular", "int")]))])
    changes = json.loads(run("schema", "--json", tmp_path)[1])["changes"]
    (place,) = [each["at"] for each in changes if "column late int added" in each["what"][0]]
    segment, position = place.split(":")
    at_it = run("schema", "--at", f"1:{position}", tmp_path)[1]
    before = run("schema", "--at", f"{segment}:{int(position) - 1}", tmp_path)[1]
    assert ["late int" in run("schema", tmp_path)[1], "late int" in at_it, "late int" in before] == [True, True, False]
    assert "later int" not in at_it
    assert "the schema at 1:" in at_it
    for wrong in ("1", "x:1", "3:1"):
        code, out, err = run("schema", "--at", wrong, tmp_path)
        assert (code, out) == (2, "")
        assert "--at" in err


def test_truncations_and_the_node(run: Run, folder: Path) -> None:
    record = (9).to_bytes(8, "big") + (1234).to_bytes(4, "big") + (T // 1000).to_bytes(8, "big")
    cells = (Cell("data_center", T, b"dc1"), Cell("truncated_at", T, record, RANGES_TABLE.id.bytes))
    write(folder, 11, [body(Mutation((PartitionUpdate(LOCAL.id, b"local", rows=(Row((), Liveness(T), cells=cells),)),)))])
    out = run("schema", folder)[1]
    assert f"-- k.rt (id {RANGES_TABLE.id}) emptied up to 9:1234 at 2023-11-14 22:13:20.000Z" in out
    assert "--   data_center: dc1" in out
    (node,) = json.loads(run("schema", "--json", folder)[1])["nodes"].values()
    assert node["truncations"] == [
        {"table": f"k.rt (id {RANGES_TABLE.id})", "id": str(RANGES_TABLE.id), "segment": 9, "position": 1234, "at_ms": T // 1000}
    ]
    assert node["node"] == {"data_center": "dc1"}


def test_tables_that_are_told_only_in_part_are_named(run: Run, tmp_path: Path) -> None:
    write(tmp_path, 1, [DDL[0], body(change("k", tables=table_rows("half", TTL_TABLE.id, T)))])
    code, _, err = run("schema", tmp_path)
    assert code == 0
    assert "k.half left out of the schema: primary key columns are missing" in err
    assert "schema snapshot" in err


# --- all


@pytest.mark.parametrize("command", ["dump", "verify", "schema"])
def test_wrong_usage(run: Run, folder: Path, command: str) -> None:
    assert run(command, "--help")[0] == 0
    assert run(command)[0] == 2
    assert run(command, "--engine", "steam", folder)[0] == 2
    assert run(command, "")[0] == 2
    assert run(command, folder / "nowhere")[0] == 1


@pytest.mark.parametrize("engine", ["python", "numba"])
def test_both_engines_tell_the_same(run: Run, folder: Path, engine: str) -> None:
    assert run("dump", "--json", "--all-tables", "--engine", engine, folder)[1] == run("dump", "--json", "--all-tables", folder)[1]


def test_what_the_pipeline_masks_is_not_shown_unless_asked_for(run: Run, folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "pipeline.yaml"
    rules = f"column.mask.with.3.chars: {CAPTURED.full_name}.*"
    value = next(column for column in CAPTURED.columns.values() if column.kind == "regular").name
    text = "pipeline: shop\ncluster: {{name: ring, datacenters: [dc1]}}\nbucket: bucket\ncolumns: {{{}}}\n"
    config.write_text(text.format(rules.replace(".*", f".{value}")))
    clear = run("dump", "--json", folder)[1]
    code, out, err = run("dump", "--json", "--config", config, folder)
    assert code == 0
    assert f'"col":"{value}"' in clear
    assert f'"col":"{value}"' not in out
    assert len(out.splitlines()) == len(clear.splitlines())
    assert "cells of masked columns" in err
    assert run("dump", "--json", "--config", config, "--unmasked", folder)[1] == clear
    config.write_text(text.format(f"rows: {{{CAPTURED.full_name}: {CAPTURED.partition_key[0].name} == 1}}"))
    _, out, err = run("dump", "--json", "--config", config, folder)
    assert f'"table":"{CAPTURED.name}"' in clear
    assert f'"table":"{CAPTURED.name}"' not in out
    assert "updates of tables with filtered rows" in err
    config.write_text(text.format(rules))
    _, out, err = run("dump", "--json", "--config", config, folder)
    assert len(out.splitlines()) < len(clear.splitlines())
    assert "updates with masked keys" in err
