"""Whom Airflow's own machinery tells what: the watch with a history of runs, killed tasks, and notifiers that raise."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from email import message_from_bytes, policy
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
import yaml

from tests.dags.one_process import run
from tests.monitoring import bucket
from tests.pipeline.quarantine.test_rejected_tables import problem, seal
from tools import ROOT
from writetime.storage.local import LocalStore

PAGERS = """
import json, os, sys, time
from pathlib import Path
from airflow.sdk import BaseNotifier

class Pager(BaseNotifier):
    template_fields = ("text", "channel")

    def __init__(self, text="{{ told }}", channel="{{ ti.task_id }}", token=""):
        super().__init__()
        self.text, self.channel, self.token = text, channel, token

    def notify(self, context):
        home = Path(os.environ["AIRFLOW_HOME"])
        if (home / "pager-is-down").exists():
            raise OSError(f"{self.token} was refused")
        with (home / "heard.jsonl").open("a") as file:
            file.write(json.dumps([self.channel, self.text]) + "\\n")

class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

class Picky(Pager):
    def __init__(self, how, **more):
        super().__init__(**more)
        if how == "value":
            raise ValueError(f"a channel begins with #, the token is {self.token}")
        if how == "exit":
            sys.exit(3)
        if how == "unreadable":
            raise Unreadable
        self.how = how

    def notify(self, context):
        if self.how == "hang":
            time.sleep(600)
        if self.how == "exit later":
            raise SystemExit(self.token)
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "pagers.py").write_text(PAGERS, encoding="utf-8")
    return tmp_path


def pipeline(home: Path, *notifiers: str) -> Path:
    file = home / "pipeline.yaml"
    listed = "".join(f"  - {each}\n" for each in notifiers)
    text = f"pipeline: p\ncluster: {{name: '{bucket.CLUSTER}', datacenters: [dc1]}}\nbucket: bucket\nairflow:\n  on_failure:\n{listed}"
    file.write_text(text, encoding="utf-8")
    return file


_WATCH = """
config = Path(os.environ["WRITETIME_CONFIG"])
dag = bag.dags["cdc_watch"]
began = datetime.now(timezone.utc)

def watched(number, *, dated=True, watch="{}", pager_is_down=False):
    text = config.read_text().partition("  watch:")[0]
    config.write_text(text + f"  watch: {watch}\\n")
    down, heard = home / "pager-is-down", home / "heard.jsonl"
    down.touch() if pager_is_down else down.unlink(missing_ok=True)
    heard.unlink(missing_ok=True)
    at = began + timedelta(minutes=number)
    run = dag.test(logical_date=at if dated else None, run_after=at)
    return [str(run.state), [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []]

only_space = "{late_minutes: null}"
say([
    watched(0, pager_is_down=True),
    watched(1),
    watched(2),
    watched(3, dated=False),
    watched(4),
    watched(5, watch=only_space),
    watched(6),
    watched(7, dated=False),
])
"""


def test_the_watch_reports_what_is_new_in_a_history_of_runs(home: Path) -> None:
    """Runs with and without a logical date, of an Airflow that has the runs before."""
    bucket.small(home / "bucket")
    unheard, first, *again, over, comes_again, lasts = run(_WATCH, home, pipeline(home, "notifier: pagers.Pager"), ["cdc_watch"])
    assert unheard == ["failed", []]
    # What nobody could be told of is new in the next run.
    state, ((channel, text),) = first
    assert (state, channel) == ("failed", "watch")
    assert text.count("late: node 0000000") == 2
    assert text.splitlines()[1].startswith("late: node 0000000")
    assert again == [["failed", []]] * 3
    assert over == ["success", []]
    assert (comes_again[0], len(comes_again[1])) == ("failed", 1)
    assert lasts == ["failed", []]


class Mailbox(StreamRequestHandler):
    """A server of mail that takes everything; `mails` of its server has what came."""

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline().upper().split():
            if line[0] == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                self.server.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")))  # type: ignore[attr-defined]
            self.wfile.write(b"250 fine\r\n")


@pytest.fixture
def mailbox() -> Iterator[Any]:
    with ThreadingTCPServer(("127.0.0.1", 0), Mailbox) as server:
        server.daemon_threads = True
        server.mails = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_notifier_of_the_docs_sends_mail(home: Path, mailbox: Any) -> None:
    """With the provider's own notifier, whose connection it reads from Airflow in a thread of its own."""
    bucket.small(home / "bucket")
    page = (ROOT / "docs" / "airflow.md").read_text(encoding="utf-8")
    wanted = yaml.safe_load(page.partition("```yaml\nairflow:\n  on_failure:")[2].partition("```")[0])[0]
    config = pipeline(home, json.dumps(wanted))
    extra = {"disable_ssl": True, "disable_tls": True}
    connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": mailbox.server_address[1], "extra": extra}
    states = run(_MAIL, home, config, ["cdc_watch"], {"AIRFLOW_CONN_SMTP_DEFAULT": json.dumps(connection)})
    # The second run has nothing new to tell.
    assert states == ["failed", "failed"]
    (mail,) = [message_from_bytes(each, policy=policy.default) for each in mailbox.mails]
    assert (mail["to"], mail["subject"]) == ("on-call@example.com", "cdc_watch failed")
    (part,) = mail.iter_parts()
    assert "<pre>writetime, pipeline p, cluster Prod &lt;1&gt;: cdc_watch.watch failed in run" in part.get_content()


_MAIL = """
began = datetime.now(timezone.utc)
say([str(bag.dags["cdc_watch"].test(run_after=began + timedelta(minutes=number), logical_date=None).state) for number in range(2)])
"""

_KILLED = """
from airflow.dag_processing.processor import ToManager, _execute_dag_callbacks, _execute_task_callbacks
from airflow.callbacks.callback_requests import DagCallbackRequest, TaskCallbackRequest
from airflow.models.dag import DagModel
from airflow.models.xcom import XComModel
from airflow.models.dag_version import DagVersion
from airflow.utils.state import TaskInstanceState
from pydantic import TypeAdapter
from sqlalchemy import delete, select

dag = bag.dags["cdc_report"]
log = structlog.get_logger()
heard = home / "heard.jsonl"

def told():
    lines = [json.loads(line) for line in heard.read_text().splitlines()] if heard.exists() else []
    heard.unlink(missing_ok=True)
    return lines

run = dag.test(run_conf={"batch": 1})
states = {(each.task_id, each.map_index): str(each.state) for each in run.get_task_instances()}
reported = told()

def called_for_run(last):
    # As the scheduler asks the DAG processor, which asks the API.
    with create_session() as session:
        ti = session.scalar(select(TaskInstance).where(TaskInstance.task_id == last[0], TaskInstance.map_index == last[1]))
        dag_run = session.scalar(select(DagRun).where(DagRun.run_id == run.run_id))
        request = dag_run.produce_dag_callback(dag=dag, success=False, relevant_ti=ti, reason="task_failure")
        session.expunge_all()
    with asking(ti.id):
        asked.clear()
        _execute_dag_callbacks(bag, DagCallbackRequest.model_validate_json(request.model_dump_json()), log)
    for message in asked:
        # It hands on no other request.
        TypeAdapter(ToManager).validate_python(message.model_dump())
    return told()

all_reported = called_for_run(("segment", 1))

def killed(task_id, map_index):
    with create_session() as session:
        of_task = XComModel.task_id == task_id, XComModel.map_index == map_index
        session.execute(delete(XComModel).where(XComModel.key == "writetime_notified", *of_task))
        ti = session.scalar(select(TaskInstance).where(TaskInstance.task_id == task_id, TaskInstance.map_index == map_index))
        ti.state = TaskInstanceState.FAILED

killed("segment", 1)
one = called_for_run(("segment", 1))
killed("failed_tables", -1)
two = called_for_run(("segment", 0))
with create_session() as session:
    # Cleared, and killed before it began: the mark of the first try is still there.
    session.scalar(select(TaskInstance).where(TaskInstance.task_id == "segment", TaskInstance.map_index == 0)).try_number += 1
again = called_for_run(("segment", 0))
say([states.pop(("segment", 0)), states.pop(("segment", 1)), reported, all_reported, one, two, again])
"""


@pytest.mark.thorough
def test_a_killed_task_is_reported_when_its_run_has_failed(home: Path) -> None:
    store = LocalStore(home / "bucket")
    for name in seal(store, 1, [], [problem(None, "damage")], [problem(None, "damage")]):
        store.put(name, b"no segment at all")
    config = pipeline(home, "notifier: pagers.Pager")
    *states, reported, all_reported, one, two, again = run(_KILLED, home, config, ["cdc_report"])
    assert states == ["failed"] * 2
    # Of two segments of one batch, the first reports for both: the run has nothing to add.
    assert ([channel for channel, _ in reported], all_reported) == (["segment"], [])
    text = reported[0][1]
    assert text.startswith(
        "writetime, pipeline p, cluster Prod <1>: cdc_report.segment of dc1/00000001-0000-4000-8000-000000000000/CommitLog-7-"
    )
    for part in (
        "1 more segments of this batch are held",
        "\nLog: http",
        "/tasks/segment/mapped/0?try_number=1\nPipeline: ",
        "/writetime/",
    ):
        assert part in text, part
    ((channel, text),) = one
    assert channel == "segment"
    assert "cdc_report: segment[1] failed in run manual__" in text
    assert "The task's process was killed (out of memory" in text
    assert "/tasks/segment/mapped/1?try_number=1" in text
    ((channel, text),) = two
    assert "cdc_report: failed_tables, segment[1] failed in run" in text
    assert "/tasks/failed_tables\n" in text
    assert "cdc_report: failed_tables, segment[0], segment[1] failed in run" in again[0][1]


_SEND = """
import writetime_notices
from writetime.config.pipeline import load
writetime_notices.SECONDS = float((home / "seconds").read_text())
config = load(os.environ["WRITETIME_CONFIG"])
errors = writetime_notices.send(config, {"ti": task_runner.RuntimeTaskInstance.model_construct(task_id="watch"), "told": "it failed"})
given = KeyError("shop"), AssertionError(), writetime_notices.AirflowException("late"), SystemExit(3), None
texts = [writetime_notices._message(each) for each in given]
say([errors, [json.loads(line) for line in (home / "heard.jsonl").read_text().splitlines()], texts])
"""

HOSTILE = {
    "{notifier: pagers.Picky, options: {how: value}, secrets: {token: '${TOKEN}'}}": "pagers.Picky: cannot be used: ValueError: a channel",
    "{notifier: pagers.Picky, options: {how: exit}}": "pagers.Picky: cannot be used: SystemExit: 3",
    "{notifier: pagers.Picky, options: {how: unreadable}}": "pagers.Picky: cannot be used: Unreadable: its text cannot be read",
    "{notifier: pagers.Picky, options: {who: x}}": "pagers.Picky: cannot be used: TypeError",
    "{notifier: pagers.Missing}": "pagers.Missing: cannot be used: AttributeError",
    "{notifier: syntax.Error}": "syntax.Error: cannot be used: SyntaxError",
    "{notifier: leaves.Now}": "leaves.Now: cannot be used: SystemExit: leaving",
    "{notifier: nowhere.Pager}": "nowhere.Pager: cannot be used: ModuleNotFoundError",
    "{notifier: pathlib.Path}": "pathlib.Path: is not an Airflow notifier",
}
LATER = {
    "{notifier: pagers.Picky, options: {how: exit later}, secrets: {token: '${TOKEN}'}}": "pagers.Picky: SystemExit: ***",
    "{notifier: pagers.Pager, options: {text: '{{ told'}}": "pagers.Pager: TemplateSyntaxError: ",
}
"""Notifiers, and what is said of them."""
HEARS = "{notifier: pagers.Pager}"


@pytest.fixture
def hostile(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TOKEN", "secret-token-7")
    (home / "syntax.py").write_text("class Error(:", encoding="utf-8")
    (home / "leaves.py").write_text("raise SystemExit('leaving')", encoding="utf-8")
    return [*HOSTILE, *LATER]


def test_whatever_a_notifier_raises_is_named_and_hides_no_other(home: Path, hostile: list[str]) -> None:
    config = pipeline(home, hostile[0], HEARS, *hostile[1:], HEARS)
    (home / "seconds").write_text("600")
    errors, heard, texts = run(_SEND, home, config, [])
    assert heard == [["watch", "it failed"]] * 2
    # An error of a library says what it is, too.
    assert texts == ["KeyError: 'shop'", "AssertionError", "late", "SystemExit: 3", ""]
    wanted = [*HOSTILE.values(), *LATER.values()]
    for key, error, part in zip([0, *range(2, len(wanted) + 1)], errors, wanted, strict=True):
        assert error.startswith(f"airflow.on_failure.{key}: "), error
        assert part in error
    assert "secret-token-7" not in json.dumps(errors)


def test_nobody_waits_for_a_notifier_that_hangs(home: Path) -> None:
    config = pipeline(home, "{notifier: pagers.Picky, options: {how: hang}}", HEARS)
    (home / "seconds").write_text("10")
    errors, heard, _ = run(_SEND, home, config, [])
    assert errors == ["airflow.on_failure.0: pagers.Picky: has not ended within 10 s"]
    assert heard == [["watch", "it failed"]]


_PROBLEMS = """
import logging
from writetime_settings import raise_problems, settings
logged = []
handler = logging.Handler()
handler.emit = lambda record: logged.append(record.getMessage())
logging.getLogger("writetime_settings").addHandler(handler)
try:
    raise_problems()
except BaseException as error:
    found = [type(error).__name__, str(error), str(error.__cause__), str(error.__context__)]
say([[each.pipeline for each in settings()], found, logged])
"""


def test_an_unusable_notifier_is_an_import_error_beside_the_others(home: Path, hostile: list[str]) -> None:
    config = pipeline(home, *hostile)
    folder = home / "pipelines"
    folder.mkdir()
    config.rename(folder / "orders.yaml")
    (folder / "bets.yaml").write_text("pipeline: bets\ncluster: {name: b, datacenters: [dc1]}\nbucket: b\nairflow: {ingest_shedule: x}\n")
    pipelines, found, (logged,) = run(_PROBLEMS, home, folder, [])
    assert pipelines == ["p"]
    assert found[0] == "ConfigError"
    assert ".yaml" not in found[1], "all users see it"
    assert "bets.yaml: `airflow.ingest_shedule`: is not a known key" in logged
    for number, (_, part) in enumerate(HOSTILE.items()):
        assert f"orders.yaml: `airflow.on_failure.{number}`: make a notifier: {part}" in logged, part
    assert "secret-token-7" not in json.dumps([found, logged])
