"""The page: nodes, segments, batches, tables, checks, quarantine, and three buttons. Rendered on the server;
scripts are optional. With several pipelines, each one has its page under `pipeline/<name>/`, and the top page
lists them.

Strategy: every request needs an Airflow user with read permission, which is checked before routing, so that no
route, redirect or status says anything to others: a pipeline that a user may not see answers as one that does
not exist. Only a POST changes anything: it must come from a page of the same origin and a user who may trigger
the DAG. Names from nodes and forms are untrusted: templates escape them, and an object is looked up before its
name is used. All data comes from `writetime.monitoring`. Knows Airflow only as `Access`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit, urlunsplit

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException as AnyHTTPException
from writetime_page_draw import bars, completeness_map, heat_map, lag_plot

from writetime.config.pipeline import NAME
from writetime.errors import BatchError, ConfigError, WritetimeError
from writetime.events.masking import Rules
from writetime.events.naming import is_shadow_name
from writetime.monitoring import checks, ledger
from writetime.monitoring.durations import span
from writetime.monitoring.health import Expected, Level, health
from writetime.monitoring.nodes import RingStatus, coverage
from writetime.monitoring.overview import overview
from writetime.monitoring.status import NO_BATCHES, NO_NODES, NO_TABLES
from writetime.pipeline.archive_packing import read_shelved
from writetime.pipeline.archiver import mark_for_retry
from writetime.pipeline.batch_history import WINDOW, Batches
from writetime.pipeline.costs import costs
from writetime.pipeline.documents import Manifest
from writetime.pipeline.interval import replay_hours
from writetime.pipeline.maintenance_report import read_maintained
from writetime.pipeline.planner import expect_replayable, read_sealed
from writetime.pipeline.quarantine import contents
from writetime.pipeline.quarantine.record import list_records, read_record
from writetime.pipeline.segment_check import known_schema
from writetime.pipeline.void import expect_open, void
from writetime.storage import layout, segment_object
from writetime.storage.concurrency import at_once

FILES: Final = Path(__file__).resolve().parent / "writetime_page_files"
INGEST, REPLAY = "cdc_ingest", "cdc_replay"
_MOST: Final = 500
_GLANCE: Final = 20
"""Batches to read for the list of pipelines."""
_LONGEST_REASON: Final = 1000
_DAYS: Final = 7
_MOST_DAYS: Final = 92
_LISTED: Final = 30
"""Tables of which the healthy ones are not folded."""
_EMPTY: Final = {"nodes": NO_NODES, "batches": NO_BATCHES, "tables": NO_TABLES}
_PIPELINE: Final = re.compile(rf"/pipeline/({NAME})(/.*)?", re.DOTALL)
"""Paths of a pipeline, if there are several: its name, and what its own app answers."""
_DIGITS: Final = 10
"""Maximum number of digits of a batch number."""
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'self'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Started:
    """A triggered run; it does not start while its DAG is `paused`."""

    dag_id: str
    run_id: str
    paused: bool


class Access(Protocol):
    """What the page needs from Airflow."""

    async def user(self, request: Request) -> Any:
        """The user of a request. Raises HTTPException 401 without a login, 403 if it is invalid."""

    def may_read(self, user: Any, dag_id: str) -> bool: ...

    def may_trigger(self, user: Any, dag_id: str) -> bool: ...

    def trigger(self, user: Any, dag_id: str, settings: dict[str, str], note: str) -> Started: ...

    def name(self, user: Any) -> str:
        """The user name to record with a decision."""

    @property
    def hosts(self) -> frozenset[str]:
        """Host names of this origin, in addition to the request's own."""

    @property
    def shows_values(self) -> bool:
        """Whether users who may trigger see the values of quarantined data."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A pipeline on the page: its batches, its masking rules, the DAGs that the buttons trigger, and what it is
    held to."""

    name: str
    open_batches: Callable[[], Batches]
    rules: Callable[[], Rules]
    ingest: str = INGEST
    replay: str = REPLAY
    expected: Callable[[], Expected] = Expected


class Problem(Protocol):
    """Why a pipeline's file cannot be used, or not completely."""

    def text(self, may_see: Callable[[str], bool]) -> str | None:
        """The text for a user who may see the pipelines for which `may_see` holds; None if it is not for them."""


def build(shown: Shown, access: Access, *, one_of_several: bool = False) -> FastAPI:
    """The app of one pipeline."""

    def require(request: Request, user: Any) -> None:
        _require_read(access, user, shown.ingest)
        request.state.may_replay = access.may_trigger(user, shown.replay)

    app = _app(require, access, shown.name if one_of_several else "")
    _add_ring_views(app, shown)
    _add_segment_views(app, shown, access)
    _add_batch_views(app, shown, access)
    _add_check_views(app, shown, access)
    _add_cost_view(app, shown)
    _add_quarantine_views(app, shown, access)
    _add_buttons(app, shown, access)
    _add_void(app, shown, access)
    return app


def build_all(pipelines: Sequence[Shown], problems: Sequence[Problem], access: Access, ingest_of: Callable[[str], str]) -> FastAPI:
    """The app of several pipelines. Users see only pipelines that they may read, and `problems` of files of these.
    `ingest_of`: the id of the DAG cdc_ingest of a pipeline, also of one whose file cannot be used, and of "", an
    unknown one."""
    names = {shown.name for shown in pipelines}

    def require(request: Request, user: Any) -> None:
        named = _PIPELINE.fullmatch(_path(request))
        if named is None:
            request.state.readable, request.state.problems = visible(user)
        elif named[1] not in names or not named[2]:
            _require_read(access, user, ingest_of(named[1]))

    def visible(user: Any) -> tuple[list[Shown], list[str]]:
        may_see = cache(lambda name: access.may_read(user, ingest_of(name)))
        readable = [shown for shown in pipelines if may_see(shown.name)]
        shown_problems = [text for problem in problems if (text := problem.text(may_see)) is not None]
        if not readable and not shown_problems:
            raise HTTPException(403, f"You may not see the DAG {INGEST} of any pipeline, so you may not see this page.")
        return readable, shown_problems

    app = _app(require, access, "")

    @app.get("/")
    def overview(request: Request) -> Response:
        return _page(request, "pipelines", rows=at_once(_look, request.state.readable), problems=request.state.problems)

    for shown in pipelines:
        app.mount(f"/pipeline/{shown.name}", build(shown, access, one_of_several=True))
    return app


def _require_read(access: Access, user: Any, dag_id: str) -> None:
    if not access.may_read(user, dag_id):
        raise HTTPException(403, f"You may not see the DAG {dag_id}, so you may not see this page.")


def _app(require: Callable[[Request, Any], None], access: Access, pipeline: str) -> FastAPI:
    """The base app. `require` raises HTTPException if the user may not see it. `pipeline`: its pipeline, if there are
    several; these have the files of the top page."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.pipeline = pipeline
    if not pipeline:
        app.mount("/files", StaticFiles(directory=FILES / "static"), name="files")
    app.middleware("http")(partial(_guarded, require, access))
    app.add_exception_handler(AnyHTTPException, _http_error)
    app.add_exception_handler(WritetimeError, _error)
    return app


def _look(shown: Shown) -> tuple[str, RingStatus | None, Level, str]:
    """A pipeline's name, its status by the last batches, its health, and the error instead of both."""
    try:
        batches = shown.open_batches()
        seen = overview(batches, last=_GLANCE)
        return shown.name, seen.ring, health(batches, seen, shown.expected()).level, ""
    except WritetimeError as error:
        return shown.name, None, "unknown", str(error)


# --- views


def _add_ring_views(app: FastAPI, shown: Shown) -> None:
    @app.get("/")
    def rings(request: Request, last: int = WINDOW) -> Response:
        batches = shown.open_batches()
        seen, held = overview(batches, last=_bounded(last)), checks.completeness(batches)
        addresses = {node.node: node.address for node in seen.ring.nodes if node.address}
        about: dict[str, Any] = {
            "heat": heat_map(coverage([node.node for node in seen.ring.nodes], seen.ring.batches), addresses),
            "session": seen.session,
            "until": seen.until,
            "held": held,
            "complete": completeness_map(held) if held else None,
            "lag": lag_plot(seen.ring.batches),
            "health": health(batches, seen, shown.expected()),
            "most": _LISTED,
        }
        return _page(request, "rings", ring=seen.ring, last=_bounded(last), **about)

    @app.get("/tables")
    def all_tables(request: Request, last: int = WINDOW) -> Response:
        batches = shown.open_batches()
        seen = overview(batches, last=_bounded(last))
        levels = {table.name: table for table in health(batches, seen, shown.expected()).tables}
        return _page(request, "tables", found=seen.tables, health=levels, last=_bounded(last), lag=lag_plot(seen.tables.batches))


def _add_segment_views(app: FastAPI, shown: Shown, access: Access) -> None:
    @app.get("/segments")
    def segments(request: Request, node: str = "", minute: str = "", name: str = "", state: str = "", cursor: str = "") -> Response:
        asked = {"node": node.strip(), "minute": minute.strip(), "name": name.strip(), "state": state if state in ledger.STATES else ""}
        moment = ledger.minute_of(minute)
        wrong = "Give a minute as 2026-01-31T10:05 (UTC)." if minute and moment is None else ""
        query = ledger.Query(asked["node"], moment, asked["name"], asked["state"])
        found = ledger.Page((), note=wrong) if wrong else ledger.search(shown.open_batches(), query, cursor=cursor)
        more = urlencode({**asked, "cursor": found.next}) if found.next else ""
        return _page(request, "segments", asked=asked, page=found, more=more, states=ledger.STATES)

    @app.get("/segment")
    def segment(request: Request, name: str) -> Response:
        batches = shown.open_batches()
        row = _row(batches, name)
        held = batches.newest().sealed
        may = row.object in (held.held if held else ()) and access.may_trigger(request.state.page_user, shown.ingest)
        return _page(request, "segment", row=row, bucket=batches.store.url, may_rerun=may and row.state == "quarantined")


def _add_batch_views(app: FastAPI, shown: Shown, access: Access) -> None:
    @app.get("/batches")
    def all_batches(request: Request, before: int | None = None) -> Response:
        batches = shown.open_batches()
        found, newest = batches.latest(100, before=before), batches.newest()
        more = found[-1].number if found and found[-1].number > 1 else None
        return _page(request, "batches", batches=found, more=more, newest=newest)

    @app.get("/batches/{number}")
    def batch(request: Request, number: int) -> Response:
        return _batch(request, shown.open_batches(), number, access.may_trigger(request.state.page_user, shown.ingest))

    @app.get("/beside/{namespace}/batches/{number}")
    def shadow_batch(request: Request, namespace: str, number: int) -> Response:
        if not is_shadow_name(namespace):
            raise HTTPException(404, "This is not a shadow namespace.")
        may_void = access.may_trigger(request.state.page_user, shown.replay)
        return _batch(request, shown.open_batches().shadow(namespace), number, may_void, namespace)


def _add_check_views(app: FastAPI, shown: Shown, access: Access) -> None:
    @app.get("/checks")
    def all_checks(request: Request) -> Response:
        batches = shown.open_batches()
        maintained, shelved = read_maintained(batches.store, batches.cluster), read_shelved(batches.store, batches.cluster)
        return _page(request, "checks", found=checks.checks(batches), maintained=maintained, shelved=shelved)

    @app.get("/checks/report")
    def check(request: Request, name: str) -> Response:
        found = checks.report(shown.open_batches(), name)
        if found is None:
            raise HTTPException(404, "Report not found. It may have been pruned.")
        keys = access.shows_values and access.may_trigger(request.state.page_user, shown.ingest)
        # The chart escapes its texts and has no style of its own.
        drawn = Markup(checks.picture(found))  # noqa: S704
        return _page(request, "check", found=found, text=checks.text(found, keys=keys), picture=drawn, keys=keys)


def _add_cost_view(app: FastAPI, shown: Shown) -> None:
    @app.get("/cost")
    def cost(request: Request, days: int = _DAYS) -> Response:
        days = max(1, min(_MOST_DAYS, days))
        return _page(request, "cost", found=costs(shown.open_batches(), days=days), days=days)


def _add_quarantine_views(app: FastAPI, shown: Shown, access: Access) -> None:
    @app.get("/quarantine")
    def quarantine_records(request: Request, cursor: str = "") -> Response:
        found, following = list_records(shown.open_batches(), cursor=cursor)
        return _page(request, "quarantine", records=found, more=urlencode({"cursor": following}) if following else "")

    @app.get("/quarantine/record")
    def quarantine_record(request: Request, name: str) -> Response:
        batches = shown.open_batches()
        record = read_record(batches, name)
        if record is None:
            raise HTTPException(404, "Quarantine record not found.")
        values = access.shows_values and access.may_trigger(request.state.page_user, shown.ingest)
        look = contents.look(batches, record, known_schema(batches.store, batches.cluster), shown.rules(), values=values)
        return _page(request, "quarantine_record", record=record, look=look)


# --- actions


def _require_trigger(access: Access, request: Request, dag_id: str) -> None:
    if not access.may_trigger(request.state.page_user, dag_id):
        raise HTTPException(403, f"You may not trigger {dag_id}.")


def _add_buttons(app: FastAPI, shown: Shown, access: Access) -> None:
    require = partial(_require_trigger, access)

    @app.get("/started")
    def started(request: Request, dag: str, run: str, paused: bool = False) -> Response:
        if dag not in (shown.ingest, shown.replay):
            raise HTTPException(404, "This is not a DAG of writetime.")
        return _page(request, "started", started=Started(dag, run, paused))

    @app.get("/rerun")
    def ask_rerun(request: Request, name: str) -> Response:
        require(request, shown.ingest)
        return _page(request, "rerun", row=_held(shown.open_batches(), name), dag_id=shown.ingest)

    @app.post("/rerun")
    async def rerun(request: Request) -> Response:
        _require_own_origin(request, access)
        form = await request.form()

        def do() -> Started:
            require(request, shown.ingest)
            batches = shown.open_batches()
            row = _held(batches, str(form.get("name", "")))
            mark_for_retry(batches.store, row.object)
            note = f"{row.object} is read again"
            return access.trigger(request.state.page_user, shown.ingest, {}, note)

        return _see(request, await run_in_threadpool(do))

    @app.get("/replay")
    def ask_replay(request: Request, start: str = "", end: str = "", namespace: str = "") -> Response:
        require(request, shown.replay)
        batches = shown.open_batches()
        hours, wrong = _replayable(batches, start, end, namespace) if start or end else (None, "")
        asked = {"start": start, "end": end, "namespace": namespace}
        about = {"horizon": _horizon(batches), "most": ledger.PAGE * 50, "dag_id": shown.replay}
        there = _archived(batches, *hours) if hours else 0
        return _page(request, "replay", asked=asked, hours=hours, wrong=wrong, there=there, about=about)

    @app.post("/replay")
    async def replay(request: Request) -> Response:
        _require_own_origin(request, access)
        form = await request.form()
        start, end, namespace = (str(form.get(name, "")) for name in ("start", "end", "namespace"))

        def do() -> Started:
            require(request, shown.replay)
            hours, wrong = _replayable(shown.open_batches(), start, end, namespace)
            if hours is None:
                raise HTTPException(422, wrong)
            settings = {"start": hours[0].isoformat(), "end": hours[1].isoformat(), **({"namespace": namespace} if namespace else {})}
            return access.trigger(request.state.page_user, shown.replay, settings, f"from {settings['start']} to {settings['end']}")

        return _see(request, await run_in_threadpool(do))


def _add_void(app: FastAPI, shown: Shown, access: Access) -> None:
    def open_batch(request: Request, number: int, namespace: str) -> tuple[Batches, Manifest]:
        """The batches of the pipeline or of a shadow namespace, and the manifest of the open batch
        `number`."""
        # Batches of a replay need permission for cdc_replay.
        _require_trigger(access, request, shown.replay if namespace else shown.ingest)
        if namespace and not is_shadow_name(namespace):
            raise HTTPException(404, "This is not a shadow namespace.")
        batches = shown.open_batches()
        batches = batches.shadow(namespace) if namespace else batches
        try:
            return batches, expect_open(batches.store, batches.cluster, number, batches.newest())
        except BatchError as error:
            raise HTTPException(409, str(error)) from error

    @app.get("/void")
    def ask_void(request: Request, number: int, namespace: str = "") -> Response:
        _, manifest = open_batch(request, number, namespace)
        return _page(request, "void", manifest=manifest, namespace=namespace, dag_id=shown.ingest)

    @app.post("/void")
    async def void_batch(request: Request) -> Response:
        _require_own_origin(request, access)
        form = await request.form()
        number, namespace, reason = (str(form.get(name, "")).strip() for name in ("number", "namespace", "reason"))
        if not number.isdecimal() or len(number) > _DIGITS:
            raise HTTPException(404, "Batch not found.")
        if not reason:
            raise HTTPException(422, "A reason is required: it is stored in the seal of the batch.")

        def do() -> Started | None:
            batches, _ = open_batch(request, int(number), namespace)
            user = request.state.page_user
            try:
                void(batches.store, batches.cluster, int(number), reason=reason[:_LONGEST_REASON], by=access.name(user))
            except BatchError as error:
                raise HTTPException(409, str(error)) from error
            note = f"batch {number} was voided: {reason[:_LONGEST_REASON]}"
            # The run reverts the commits of the batch; its note records the reason. A shadow namespace waits
            # for the next replay.
            return None if namespace else access.trigger(user, shown.ingest, {}, note)

        started = await run_in_threadpool(do)
        shadow = f"beside/{namespace}/" if namespace else ""
        root = request.scope.get("root_path", "")
        return _see(request, started) if started else RedirectResponse(f"{root}/{shadow}batches/{number}", 303)


def _require_own_origin(request: Request, access: Access) -> None:
    """Protect against cross-site requests: another site must not use the cookie of a user. Browsers send the
    origin of a POST; without one, or with a foreign one, it is refused."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        good = site == "same-origin"
    else:
        good = origin is not None and urlsplit(origin).netloc in {request.headers.get("host", ""), *access.hosts}
    if not good:
        raise HTTPException(403, "The request does not come from this page.")


def _held(batches: Batches, name: str) -> ledger.Row:
    """The segment of that name, if it is held."""
    row, sealed = _row(batches, name), batches.newest().sealed
    if row.state != "quarantined" or row.object not in (sealed.held if sealed else ()):
        raise HTTPException(409, f"This segment is not held: it is {row.state}.")
    return row


def _batch(request: Request, batches: Batches, number: int, may_void: bool, namespace: str = "") -> Response:
    manifest = batches.begun(number) if 0 < number < 10**_DIGITS else None
    if manifest is None:
        raise HTTPException(404, "Batch not found. Its documents may have been pruned.")
    sealed = read_sealed(batches.store, batches.cluster, number)
    return _page(request, "batch", manifest=manifest, sealed=sealed, namespace=namespace, may_void=may_void and sealed is None)


def _row(batches: Batches, name: str) -> ledger.Row:
    row = ledger.find(batches, name)
    if row is None:
        raise HTTPException(404, "Segment not found.")
    return row


def _replayable(batches: Batches, start: str, end: str, namespace: str) -> tuple[tuple[datetime, datetime] | None, str]:
    """The whole hours to replay, or the reason why they cannot be replayed."""
    try:
        hours = replay_hours(start, end)
    except ConfigError as error:
        return None, str(error)
    if namespace and not is_shadow_name(namespace):
        return None, "A namespace is made of lower-case letters, digits and single _, and must not be `changes`."
    try:
        expect_replayable(batches.newest().sealed, hours[0], batches.cluster, shadow=bool(namespace))
    except BatchError as error:
        return None, str(error)
    return hours, ""


def _horizon(batches: Batches) -> datetime | None:
    sealed = batches.newest().sealed
    return datetime.fromtimestamp(sealed.horizon, UTC) if sealed and sealed.horizon is not None else None


def _archived(batches: Batches, begin: datetime, until: datetime) -> int:
    """Number of archived segments of those hours, up to a limit."""
    hours = (begin + timedelta(hours=n) for n in range(int((until - begin) / timedelta(hours=1))))
    found = (info for hour in hours for info in segment_object.listed(batches.store, layout.archive_hour_prefix(batches.cluster, hour)))
    return sum(1 for _ in islice(found, ledger.PAGE * 50))


# --- pages


def _page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    pipeline: str = request.app.state.pipeline
    top = _top(request)
    about = {
        "root": request.scope.get("root_path", ""),
        "top": top,
        "airflow": top.removesuffix("/writetime"),
        "pipeline": pipeline,
        "may_replay": getattr(request.state, "may_replay", False),
        "now": datetime.now(UTC),
        "empty": _EMPTY,
    }
    return HTMLResponse(_TEMPLATES.get_template(f"{template}.html").render({**about, **values}), status)


def _path(request: Request) -> str:
    """The path within this app."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def _top(request: Request) -> str:
    """The path of the first page."""
    root: str = request.scope.get("root_path", "")
    return root.removesuffix(f"/pipeline/{request.app.state.pipeline}")


def _see(request: Request, started: Started) -> Response:
    asked = urlencode({"dag": started.dag_id, "run": started.run_id, "paused": str(started.paused).lower()})
    return RedirectResponse(f"{request.scope.get('root_path', '')}/started?{asked}", 303)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHTTPException)
    return _page(request, "error", error.status_code, code=error.status_code, message=str(error.detail))


def _error(request: Request, error: Exception) -> Response:
    """The bucket cannot be read, or the configuration is invalid: show the message."""
    retriable = isinstance(error, WritetimeError) and error.retriable
    return _page(request, "error", 503 if retriable else 500, code=503 if retriable else 500, message=str(error))


async def _guarded(
    require: Callable[[Request, Any], None], access: Access, request: Request, call_next: Callable[[Request], Any]
) -> Response:
    """The answer, if the user may have one. Comes before routing: an unknown path is refused as a known one is."""
    response: Response
    if not request.app.state.pipeline and _path(request).startswith("/files/"):
        response = await call_next(request)
        response.headers["Cache-Control"] = "max-age=300"
        return response
    try:
        # The app of a pipeline is within that of the first page, which has asked before.
        request.state.page_user = getattr(request.state, "page_user", None) or await access.user(request)
        await run_in_threadpool(require, request, request.state.page_user)
    except AnyHTTPException as error:
        response = _refused(request, error)
    else:
        response = await call_next(request)
    if "location" in response.headers:
        # Starlette's own redirects name scheme and host, which behind a proxy are not those of the browser.
        response.headers["location"] = urlunsplit(("", "", *urlsplit(response.headers["location"])[2:]))
    response.headers.update(_HEADERS)
    return response


def _refused(request: Request, error: AnyHTTPException) -> Response:
    """The same page for each pipeline, existing or not."""
    top = _top(request)
    return _page(request, "error", error.status_code, code=error.status_code, message=str(error.detail), root=top, top=top, pipeline="")


def _bounded(last: int) -> int:
    return max(1, min(_MOST, last))


def _ago(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else span((now - moment).total_seconds())


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _size(count: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _templates() -> Environment:
    found = Environment(
        loader=FileSystemLoader(FILES / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    filters: Mapping[str, Callable[..., str]] = {"ago": _ago, "time": _time, "size": _size, "bars": bars, "span": span}
    found.filters.update(filters, number=lambda n: f"{n:,}")
    return found


_TEMPLATES: Final = _templates()
