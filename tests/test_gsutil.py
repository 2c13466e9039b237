"""Google's gsutil in front of the GCS test server: each of its commands in the documentation does there what
the page says."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import gcs_server
from tests.monitoring import bucket
from tests.rights.forward import Answer, Request, forwarding
from tests.storage.test_s3 import certificate
from tests.test_docs import PAGES
from tests.test_walk import BASH, add_replay, check_walk, fill, of_the_runbook, pack_segment, removal_of
from tools import environment
from writetime.pipeline.documents import LedgerEntry
from writetime.storage import layout, open_store
from writetime.storage.checksum import crc32c
from writetime.storage.local import LocalStore
from writetime.storage.store import Store

pytestmark = pytest.mark.gcs

GSUTIL = environment.program("gsutil", "gsutil")
DEPARTED = 'gsutil rm -r "gs://BUCKET/nodes/…*"'
UNPACKED = "gsutil cat gs://bucket/cdc_archive/…/CommitLog-7-….log.zst | zstd -d > CommitLog-7-….log"
REPLAY = "gsutil -m rm -r gs://bucket/batches/my-ring.replay.check gs://bucket/state/my-ring.replay.check"
MENTIONED = {"gsutil", "gsutil cat"}
"""What the pages say of the program; no command."""


def commands_of_the_docs() -> list[str]:
    """Lines of blocks, and what stands between backticks in a sentence, which may go on in the next line."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    found = [line for text in texts for line in re.findall(r"^ *(gsutil .*)$", text, re.MULTILINE)]
    found += [re.sub(r"\s+", " ", each) for text in texts for each in re.findall(r"(?<!`)`(gsutil[^`]*)`(?!`)", text)]
    return [each for each in found if each not in MENTIONED]


class AsGoogle:
    """Before the test server: a deletion is answered as Google does, with 204; the server says 200 and `null`, which
    gsutil takes for a failure."""

    def ask(self, request: Request) -> Answer | None:
        return None

    def amend(self, request: Request, answer: Answer) -> Answer:
        return Answer(204) if (request.method, answer.status) == ("DELETE", 200) else answer


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with gsutil's settings, while the server runs. gsutil speaks TLS only."""
    server = gcs_server.program()
    if server is None or not GSUTIL.exists():
        pytest.skip("no GCS test server, or no gsutil: run make test-gcs")
    folder = tmp_path_factory.mktemp("gsutil")
    pem = certificate(folder)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    with gcs_server.running(server, folder) as url, forwarding(url, AsGoogle(), tls) as secured, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        settings = f"""
[Credentials]
gs_json_host = 127.0.0.1
gs_json_port = {secured.rpartition(":")[2]}
[Boto]
ca_certificates_file = {pem}
num_retries = 1
[GSUtil]
state_dir = {folder}
software_update_check_period = 0
"""
        (folder / "boto").write_text(settings, encoding="utf-8")
        yield folder


@pytest.fixture(scope="module")
def store(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The bucket of tests/test_walk.py, as `gs://bucket`."""
    folder = tmp_path_factory.mktemp("old") / "bucket"
    fill(folder)
    gcs_server.make_bucket(os.environ["STORAGE_EMULATOR_HOST"], "bucket")
    target = open_store("gs://bucket")
    source = LocalStore(folder)
    for info in list(source.list()):
        target.put(info.name, source.read(info.name))
    return target


@pytest.fixture
def ask(home: Path, store: Store) -> Callable[[str], str]:
    """Run a command in the folder; what it prints. The shell has the gsutil that is installed for tests."""
    environment = {"PATH": f"{GSUTIL.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(home), "BOTO_CONFIG": str(home / "boto")}

    def run(command: str) -> str:
        options = ["-euo", "pipefail", "-c", command]
        done = subprocess.run([BASH, *options], cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def names(store: Store) -> set[str]:
    return {info.name for info in store.list()}


def test_every_command_of_the_documentation_is_run_here() -> None:
    walk = [command.replace(layout.part(bucket.CLUSTER), "my-ring") for command in of_the_runbook()]
    assert len(walk) == 6
    others = [each for each in commands_of_the_docs() if each not in walk and not each.startswith(REPLAY)]
    assert sorted(others) == sorted([DEPARTED, UNPACKED])


def test_a_minute_of_a_node(ask: Callable[[str], str]) -> None:
    check_walk(ask)


def test_a_packed_segment_is_unpacked(ask: Callable[[str], str], store: Store, home: Path) -> None:
    archived = min(name for name in names(store) if name.startswith("cdc_archive/") and bucket.NODES[2].host_id in name)
    pack_segment(store, archived)
    assert f"{archived}.zst" in names(store) - {archived}
    folder, _, file = archived.rpartition("/")
    ask(UNPACKED.replace("cdc_archive/…", folder).replace("CommitLog-7-….log", file))
    content = (home / file).read_bytes()
    noted = LedgerEntry.read(store, layout.SegmentRef.from_object(archived).ledger)
    assert noted is not None
    assert (len(content), crc32c(content)) == (noted.size, noted.crc32c)


def test_a_node_that_is_gone_for_good_is_forgotten(ask: Callable[[str], str], store: Store) -> None:
    node = bucket.NODES[2]
    store.put(layout.node_status(node, bucket.minute(1), "0a0b0c0d"), b"{}")
    before = names(store)
    prefix = layout.node_documents(node)
    ask(DEPARTED.replace("BUCKET/nodes/…", f"bucket/{prefix}"))
    assert len(before) - len(names(store)) == 2
    assert names(store) == {name for name in before if not name.startswith(prefix)}


def test_a_namespace_of_a_replay_is_fresh_again(ask: Callable[[str], str], store: Store) -> None:
    before = names(store)
    chain = layout.shadow_chain(bucket.CLUSTER, "check")
    add_replay(store, chain)
    ask(removal_of(chain))
    assert names(store) == before
