"""A walk through the bucket with nothing but `ls` and `cat`, as the runbook has it: from a minute and a node
to what became of it. Over a folder; tests/test_gsutil.py has gsutil itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from tests.monitoring import bucket
from writetime.pipeline.archive_packing import pack, to_pack
from writetime.pipeline.documents import LedgerEntry
from writetime.pipeline.planner import history
from writetime.storage import layout
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore
from writetime.storage.store import Store

RUNBOOK = Path(__file__).resolve().parents[1] / "docs" / "runbook.md"
BASH = shutil.which("bash") or "/bin/bash"
GSUTIL = r"""
gsutil() {
  case $1 in
    ls) ls -1 -p ${2#gs://} | sed "s,^,$2,";;
    cat) case $2 in
      *'**') find ${2:5:-2} -type f -exec cat {} +;;
      *) cat ${2#gs://};;
    esac;;
    -m) [ "$2 $3" = "rm -r" ] && rm -r "${@:4}";;
  esac
}
set -e
"""


def fill(folder: Path) -> None:
    """A small pipeline's bucket."""
    bucket.small(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("walk") / "bucket"
    fill(found)
    return found


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day later: half of the archive is packed."""
    found = tmp_path_factory.mktemp("old") / "bucket"
    fill(found)
    store = LocalStore(found)
    for name in list(to_pack(store, bucket.CLUSTER, bucket.minute(99999)))[::2]:
        pack_segment(store, name)
    return found


def pack_segment(store: Store, name: str) -> None:
    """Pack an archived segment, whose ledger entry notes the size and checksum of its content from here on."""
    entry = LedgerEntry.read(store, layout.SegmentRef.from_object(name).ledger)
    assert entry is not None
    content = store.read(name)
    noted = entry.model_copy(update={"size": len(content), "crc32c": crc32c(content)})
    store.put(layout.SegmentRef.from_object(name).ledger, noted.to_bytes())
    pack(store, name, 3)


def ask(folder: Path, command: str) -> str:
    """What a command of the runbook prints, told of a folder."""
    return subprocess.run([BASH, "-c", GSUTIL + command], cwd=folder.parent, check=True, capture_output=True, text=True).stdout


def of_the_runbook() -> list[str]:
    (section,) = re.findall(
        r"^## Which segment held.*?```console\n(.*?)^```", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [line.replace("my-ring", layout.part(bucket.CLUSTER)) for line in section.splitlines()]


def check_walk(ask: Callable[[str], str]) -> None:
    """The commands of the runbook, run by `ask`, say what the runbook says they do."""
    nodes, archived, waiting, entry, batches, sealed = map(ask, of_the_runbook())
    assert '"address": "10.0.0.1"' in nodes
    assert nodes.count('"host_id"') == 2, "a node of the datacenter is missing"
    assert names(waiting) == ["CommitLog-7-1777890000006.log", "CommitLog-7-1777891000000.log"]
    segments = names(archived)
    assert "CommitLog-7-1777890000010.log" in segments
    assert segments == sorted(segments)
    told = json.loads(entry)
    assert (told["state"], told["batch"], told["sealed_at"]) == ("archived", 5, "2026-05-04T12:05:00Z")
    assert f"gs://bucket/{told['archived_as']}" in archived.split()
    assert f"{told['batch']:010d}" in names(batches)
    assert told["object"] in [segment["object"] for segment in json.loads(sealed)["segments"]]


def names(listing: str) -> list[str]:
    """Of the objects and folders that `gsutil ls` prints, without what is before them."""
    return [Path(line).name for line in listing.split()]


def test_the_commands_of_the_runbook(folder: Path) -> None:
    check_walk(partial(ask, folder))


def test_a_namespace_of_a_replay_is_fresh_again_by_the_command_of_the_runbook(tmp_path: Path) -> None:
    found = tmp_path / "bucket"
    bucket.small(found)
    store, chain = LocalStore(found), layout.shadow_chain(bucket.CLUSTER, "check")
    before = {info.name for info in store.list()}
    add_replay(store, chain)
    ask(found, removal_of(chain).replace("gs://", ""))
    assert {info.name for info in store.list()} == before
    assert history(store, chain).sealed is None


def add_replay(store: Store, chain: str) -> None:
    """What a replay into a namespace leaves in the bucket."""
    table_id = str(bucket.ORDERS)
    store.put(layout.batch_object(chain, 1, "sealed"), b"{}")
    store.put(f"{layout.state_shard(chain, table_id, 0, 0)}/data/x.lance", b"{}")
    store.put(layout.state_lease(chain, table_id, 0, 0), b"{}")


def removal_of(chain: str) -> str:
    """The runbook's command that makes a replay's namespace fresh again."""
    (command,) = re.findall(r"^gsutil -m rm .*$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    return command.replace("my-ring.replay.check", layout.part(chain))


@pytest.mark.parametrize("of", ["folder", "old"])
@pytest.mark.parametrize("number", [1.2, 3.0, 4.5, 7.9])
def test_a_minute_of_a_node(request: pytest.FixtureRequest, of: str, number: float) -> None:
    """By what the runbook says, for other minutes: the segment is the one that was being written then."""
    folder: Path = request.getfixturevalue(of)
    cluster, at = layout.part(bucket.CLUSTER), bucket.minute(number)
    host = next(
        document["host_id"]
        for path in folder.glob("nodes/*/dc1/**/*.json")
        if (document := json.loads(path.read_text(encoding="utf-8"))).get("address") == "10.0.0.1"
    )
    places = (f"cdc_archive/{{}}/date={at:%Y-%m-%d}/hour={at:%H}/dc1/{host}/", f"cdc/{{}}/dc1/{host}/")
    segments = sorted(name for place in places for name in names(ask(folder, f"gsutil ls gs://bucket/{place.format(cluster)}")))
    ledger = names(ask(folder, f"gsutil ls gs://bucket/ledger/{cluster}/dc1/{host}/"))
    entries = [
        json.loads(ask(folder, f"gsutil cat gs://bucket/ledger/{cluster}/dc1/{host}/{entry}"))
        for name in segments
        if (entry := f"{Path(name.removesuffix('.zst')).stem}.json") in ledger
    ]
    found = next(entry for entry in entries if datetime.fromisoformat(entry["sealed_at"]) >= at)
    assert datetime.fromisoformat(found["sealed_at"]) - at < timedelta(minutes=0.5)
    assert found["state"] == ("quarantined" if number == 3 else "archived")
    if found["stored"] is not None:
        file = pa.input_stream(folder / found["archived_as"], compression="zstd").read()
        assert (len(file), crc32c(file)) == (found["size"], found["crc32c"]), "as `zstd -d` makes of it"


def test_half_of_it_is_packed(old: Path) -> None:
    found = [path.suffix for path in old.glob("cdc_archive/**/CommitLog-*")]
    assert 0 < found.count(".zst") < len(found)
