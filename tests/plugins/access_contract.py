"""What the page relies on in Airflow, as one set of questions: `behaviour` asks them of `AirflowAccess` in a real API
server, and of the stand-in that the tests of pages use (`test_page.Guard`). Both have to answer alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import HTTPException, Request

RIGHTS: dict[str, dict[str, list[str]]] = {
    "operator": {"GET": ["*"], "POST": ["*"]},
    "replayer": {"GET": ["*"], "POST": ["cdc_replay", "cdc_replay__*"]},
    "viewer": {"GET": ["*"]},
    "bookmaker": {"GET": ["cdc_ingest__bets"]},
    "stranger": {},
}
DAGS = ("cdc_ingest__bets", "cdc_replay__bets", "cdc_ingest__orders", "cdc_replay__orders", "cdc_ingest__nosuch", "cdc_ingest")


def request(headers: dict[str, str]) -> Request:
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": given, "query_string": b"", "state": {}})


async def behaviour(access: Any, request_of: Callable[[str], Request]) -> dict[str, Any]:
    """`request_of`: a request of a user; of nobody for "", and one with a false login for "forged"."""
    found: dict[str, Any] = {
        "without a login": await _refusal(access, request_of("")),
        "forged": await _refusal(access, request_of("forged")),
    }
    for name in RIGHTS:
        user = await access.user(request_of(name))
        reads, triggers = ([dag for dag in DAGS if may(user, dag)] for may in (access.may_read, access.may_trigger))
        found[name] = {"is named": name in access.name(user), "reads": reads, "triggers": triggers}
    operator = await access.user(request_of("operator"))
    # As the page does it: in a thread.
    started = await asyncio.to_thread(access.trigger, operator, "cdc_replay__bets", {"start": "2026-05-04T12:00Z"}, "a <note>")
    found["started"] = [started.dag_id, bool(started.run_id), started.paused]
    try:
        await asyncio.to_thread(access.trigger, operator, "cdc_ingest__nosuch", {}, "")
        found["unknown DAG"] = "was started"
    except HTTPException as error:
        found["unknown DAG"] = [error.status_code, "cdc_ingest__nosuch" in error.detail]
    found["hosts"] = [type(access.hosts).__name__, sorted({type(host).__name__ for host in access.hosts})]
    found["shows values"] = type(access.shows_values).__name__
    return found


async def _refusal(access: Any, asked: Request) -> Any:
    try:
        return str(await access.user(asked))
    except HTTPException as error:
        return error.status_code
