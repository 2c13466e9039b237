"""Asks every route of the page's app for everything, as several users: see test_rights. Runs in a process of its own.

There are two installations: one with the pipelines of others, one in which these never existed. A user of the one
pipeline that both have must not be able to tell them apart. The pipelines share a bucket."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tests.monitoring import bucket
from tests.plugins.live_app import Server, report
from writetime.config.installation import SETTING
from writetime.pipeline import verification
from writetime.pipeline.verification import Finding, RangeResult, TableResult, VerifyReport
from writetime.storage import layout
from writetime.storage.local import LocalStore

THEIRS = "Wage <1>"
"""The cluster of `payroll`; that of `orders` is the made-up bucket's."""
RENAMED = {"Prod": "Wage", "shop": "hire", "4000-8000": "4999-8999", "10.0.0.": "10.9.9.", "hunter2": "secret7", "boo<": "foe<"}
"""What the other pipeline has instead: of the same length, since mutations hold lengths."""
MARKERS = ("payroll", "Wage", "hire", "4999-8999", "10.9.9.", "secret7", "foe", "broken", "not a known key", "Nobody.yaml", "twin")
"""What no user of `orders` may find in an answer, unless they have asked for it themselves."""
OF_ONE_PIPELINE = ("orders", "payroll", "broken", "nosuch")
CHECK = "check"


def other(text: str) -> str:
    for ours, theirs in RENAMED.items():
        text = text.replace(ours, theirs)
    return text


def fill_theirs(folder: Path) -> None:
    """A bucket like that of `orders`, with more batches and other names."""
    store = LocalStore(folder)

    def put(name: str, data: bytes) -> None:
        renamed = other(data.decode("latin-1")).encode("latin-1")
        noted = {"sealed_at": data.decode()} if name.startswith("cdc_archive/") else None
        store.put(other(name), renamed, metadata=noted)

    builder = bucket.Builder(put)
    for number in range(1, 11):
        builder.batch(number)
    builder.around(10)
    shadow = layout.shadow_chain(THEIRS, CHECK)
    for what in ("manifest", "sealed"):
        store.put(layout.batch_object(shadow, 3, what), store.read(layout.batch_object(THEIRS, 3, what)))


def verified(folder: Path, cluster: str, key: str) -> str:
    """A report of `cdc_verify` in the bucket; its name."""
    finding = Finding(key=key, token=5, verdict="drift", differences=[("value", "note")], first_seen=bucket.START)
    table = TableResult(
        table="shop.orders", table_id=bucket.ORDERS, ranges=[RangeResult(start=0, end=9, rows=9, drift=1)], findings=[finding]
    )
    about: dict[str, Any] = {"cluster": cluster, "started_at": bucket.START, "finished_at": bucket.START}
    found = VerifyReport(**about, batch=8, horizon=None, consistency="ALL", share=0.5, seed=0, tables=[table])
    return verification.write_report(LocalStore(folder), found)


def yaml(name: str, cluster: str, more: str = "") -> str:
    return f"pipeline: {name}\ncluster: {{name: '{cluster}', datacenters: [dc1]}}\nbucket: ../bucket\n{more}"


@dataclass
class Installation:
    """`alone`: without the pipelines of others."""

    folder: Path
    alone: bool
    reports: dict[str, str] = field(default_factory=dict)

    def make(self) -> None:
        # The same places as the other one, since pages name them.
        shutil.rmtree(self.folder, ignore_errors=True)
        pipelines, store = self.folder / "pipelines", self.folder / "bucket"
        pipelines.mkdir(parents=True)
        bucket.small(store)
        (pipelines / "orders.yaml").write_text(yaml("orders", bucket.CLUSTER), encoding="utf-8")
        self.reports["orders"] = verified(store, bucket.CLUSTER, "key-7")
        self.reports["payroll"] = other(self.reports["orders"])
        if not self.alone:
            fill_theirs(store)
            verified(store, THEIRS, "secret7")
            (pipelines / "payroll.yaml").write_text(yaml("payroll", THEIRS), encoding="utf-8")
            (pipelines / "broken.yaml").write_text(yaml("broken", "B", "nodes: {}\n"), encoding="utf-8")
            # Nobody knows whose it is; and one that its author has copied from `orders`.
            (pipelines / "Nobody.yaml").write_text("pipeline: [\n", encoding="utf-8")
            (pipelines / "twin.yaml").write_text(yaml("orders", "twins", "nodes: {}\n"), encoding="utf-8")
        for file in store.rglob("*"):
            # What waits is as old as its file.
            os.utime(file, (bucket.START.timestamp(),) * 2)
        os.environ[SETTING] = str(pipelines)


def names(asked: Installation) -> dict[str, list[str]]:
    """Names of objects of the other pipeline, and such as lead there from the user's own."""
    bad = bucket.ref(0, 6)
    incoming, archived = other(bad.incoming), other(bucket.ref(0, 8).archived(bucket.minute(4)))
    record = other(f"{bad.quarantined(4711, len(bucket.mutation(bucket.ORDERS)))}.bin")
    around = f"{layout.quarantine_prefix(bucket.CLUSTER)}../{layout.part(THEIRS)}/{record.split('/', 2)[2]}"
    report_around = f"{layout.verify_prefix(bucket.CLUSTER)}../{layout.part(THEIRS)}/{asked.reports['payroll'].split('/', 2)[2]}"
    return {
        "segment": [incoming, archived, other(bad.ledger), f"cdc/{layout.part(bucket.CLUSTER)}/../{incoming.removeprefix('cdc/')}"],
        "record": [record, around],
        "report": [asked.reports["payroll"], report_around],
    }


def gets(asked: Installation) -> dict[str, list[str]]:
    """What is asked of each route: paths and queries. A new route has to be added."""
    known = names(asked)

    def of(name: str, texts: list[str]) -> list[str]:
        return ["?" + urlencode({name: text}) for text in texts]

    theirs = other(bucket.NODES[0].host_id)
    return {
        "/": ["", "?last=500"],
        "/tables": ["", "?last=500"],
        "/segments": ["", "?state=quarantined", "?cursor=10.0", f"?node={theirs}", *of("name", ["1777890000019", *known["segment"]])],
        "/segment": ["", *of("name", known["segment"])],
        "/batches": ["", "?before=11"],
        "/batches/{number}": ["3", "10", "x"],
        "/beside/{namespace}/batches/{number}": [f"{CHECK}/batches/3", f"{quote(THEIRS)}/batches/3"],
        "/checks": [""],
        "/checks/report": ["", *of("name", known["report"])],
        "/cost": ["", "?days=92"],
        "/quarantine": ["", *of("cursor", [layout.quarantine_prefix(THEIRS), known["record"][0]])],
        "/quarantine/record": ["", *of("name", known["record"])],
        "/quarantine/piece": of("name", known["record"]),
        "/started": ["?dag=cdc_ingest__payroll&run=x"],
        "/rerun": ["", *of("name", known["segment"])],
        "/replay": ["", "?start=2026-05-04T12:00&end=2026-05-04T13:00", f"?start=2026-05-04T12:00&end=2026-05-04T13:00&namespace={CHECK}"],
        "/void": ["", "?number=9", "?number=11", f"?number=4&namespace={CHECK}"],
    }


def posts(asked: Installation, pipeline: str) -> dict[str, list[dict[str, str]]]:
    """Forms for each route: for the user's own pipeline with names of the other one, else also good ones."""
    mine = pipeline == "orders"
    good = [{"start": "2026-05-04T12:00", "end": "2026-05-04T13:00"}]
    return {
        "/rerun": [{}, *({"name": name} for name in names(asked)["segment"])],
        "/replay": [{}, {"start": "2026-05-04T13:00", "end": "2026-05-04T12:00"}, *([] if mine else good)],
        "/void": [{}, *({"number": number, "reason": "x"} for number in ("8", "10", "11"))],
    }


def routes(app: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Method and path of every route below an app; `FILES` is the method of a folder of files."""
    for route in app.routes:
        if isinstance(route, Route):
            yield from ((method, prefix + route.path) for method in sorted(route.methods or ()))
        elif isinstance(route, Mount) and isinstance(route.app, StaticFiles):
            yield "FILES", prefix + route.path
        elif isinstance(route, Mount):
            yield from routes(route.app, prefix + route.path)
        else:
            raise TypeError(f"a route of another kind, which is not asked for: {route!r}")


@dataclass(frozen=True, slots=True)
class Asked:
    """`first`: of a route of a pipeline. Who is refused everything is asked for these only."""

    method: str
    path: str
    form: dict[str, str] | None = None
    first: bool = True

    def __str__(self) -> str:
        return f"{self.method} /{self.path} {self.form or ''}"


def requests(found: list[tuple[str, str]], asked: Installation) -> Iterator[Asked]:
    """Everything that is asked. KeyError for a route for which nothing is."""
    mounted = {(method, path.removeprefix("/pipeline/orders")) for method, path in found if path.startswith("/pipeline/orders/")}
    top = [(method, path) for method, path in found if not path.startswith("/pipeline/") and method != "FILES"]
    assert top == [("GET", "/")], f"routes of the first page that are not asked for: {top}"
    for method, path in [("GET", ""), ("GET", "elsewhere"), ("POST", ""), ("OPTIONS", ""), ("HEAD", "")]:
        yield Asked(method, path)
    for pipeline in OF_ONE_PIPELINE:
        base = f"pipeline/{pipeline}"
        for method, path in [*(("GET", f"{base}{end}") for end in ("", "/files/page.css", "/elsewhere", "//")), ("PUT", f"{base}/void")]:
            yield Asked(method, path)
        for method, path in sorted(mounted):
            if method == "GET":
                fixed = path.partition("{")[0]
                yield from (Asked(method, f"{base}{fixed}{rest}", None, not place) for place, rest in enumerate(gets(asked)[path]))
            else:
                forms = posts(asked, pipeline)[path]
                yield from (Asked(method, f"{base}{path}", form, form is forms[-1]) for form in forms)


class Walk:
    """The answers of one installation, by user and request."""

    def __init__(self, server: Server, asked: Installation, users: tuple[str, ...]) -> None:
        self.routes = list(routes(server.page))
        self.server, self.headers = server, {"": {}, **{user: server.log_in(user) for user in users}}
        self.requests = list(requests(self.routes, asked))

    def ask(self, user: str, wanted: Callable[[Asked], bool] = lambda asked: True) -> dict[str, tuple[int, str]]:
        return {str(asked): self._answer(user, asked) for asked in self.requests if wanted(asked)}

    def _answer(self, user: str, asked: Asked) -> tuple[int, str]:
        headers = self.headers[user] | {"origin": "http://testserver"}
        answer = self.server.client.request(
            asked.method, f"/writetime/{asked.path}", headers=headers, data=asked.form, follow_redirects=False
        )
        # Without what goes on with the clock.
        shown = re.sub(r'<span class="clock">[^<]*</span>|\b\d+(?:\.\d+)? (?:s|min|h|d)\b', "", answer.text)
        return answer.status_code, f"{shown}\n{answer.headers.get('location', '')}\n{answer.headers.get('allow', '')}"


def difference(one: tuple[int, str], another: tuple[int, str]) -> str:
    lines = [[str(status), *text.splitlines()] for status, text in (one, another)]
    return "\n".join(unified_diff(*lines, lineterm="", n=0))


def of_anyone(request: str, answer: tuple[int, str]) -> tuple[int, str]:
    """An answer without the pipeline that was asked for."""
    asked = re.search(r"/pipeline/(\w+)", request)
    return answer if asked is None else (answer[0], answer[1].replace(asked[1], "*"))


def answered(answers: dict[str, tuple[int, str]]) -> list[str]:
    """The pipelines of which something is shown."""
    return sorted({request.split("/")[2] for request, (status, _) in answers.items() if status == 200 and "/pipeline/" in request})


def marked(answers: dict[str, tuple[int, str]]) -> list[str]:
    """Requests whose answers show something of others that the request does not name."""
    return [
        f"{request}: {marker}"
        for request, (_, text) in answers.items()
        for marker in MARKERS
        if marker in text and marker not in request.replace("+", " ")
    ]


def main() -> None:
    folder = Path.cwd() / "installation"
    shared = Installation(folder, alone=False)
    shared.make()
    server = Server()
    walk = Walk(server, shared, ("ann", "nia", "vic", "adam"))
    answers = {user: walk.ask(user, lambda asked: asked.first) for user in ("", "nia", "vic")}
    ann, admin = walk.ask("ann"), walk.ask("adam", lambda asked: asked.method == "GET" and "/nosuch" not in asked.path)
    errors = server.client.get("/api/v2/importErrors", headers=walk.headers["ann"]).json()["import_errors"]
    alone = Installation(folder, alone=True)
    alone.make()
    without = Walk(server, alone, ("ann",))
    without.requests = walk.requests
    before = without.ask("ann")
    report(
        {
            "routes": len(walk.routes),
            "files": [path for method, path in walk.routes if method == "FILES"],
            "requests": len(walk.requests),
            "anonymous": sorted({of_anyone(*each) for each in answers[""].items()}),
            "of none": sorted({of_anyone(*each) for each in answers["nia"].items()}),
            "seen by ann": marked(ann),
            "told apart by ann": [f"{each}\n{difference(ann[each], before[each])}" for each in ann if ann[each] != before[each]],
            "answered to ann": answered(ann),
            "vic": {request: answer for request, answer in answers["vic"].items() if answer[0] not in (403, 404, 405)},
            "markers": list(MARKERS),
            "admin": [marker for marker in MARKERS if any(marker in text for _, text in admin.values())],
            "answered to an admin": answered(admin),
            "import errors": [error["stack_trace"] for error in errors],
        }
    )


if __name__ == "__main__":
    main()
