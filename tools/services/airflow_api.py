"""A small client of Airflow's REST API (/api/v2), for demo and tests: start a run, read its state, clear a
task.

Connects to loopback only. Logs in at the first call; the token is valid for a day, longer than a client
lives. Returns the API's responses as plain dicts: fields are those of Airflow 3's reference.
"""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from tools.errors import ServiceError
from tools.services.ports import LOOPBACK

FINISHED = frozenset({"success", "failed"})
"""States of a DAG run that it does not leave by itself."""


class AirflowApi:
    """The API of a local Airflow. Every call raises ServiceError if it is rejected or there is no
    response."""

    def __init__(self, port: int, user: str, password: str, path: str = "") -> None:
        self._port = port
        self._path = path
        self._user = user
        self._password = password
        self._token: str | None = None

    def health(self) -> dict[str, Any]:
        """State of database, scheduler, triggerer and DAG processor."""
        return self._send("GET", "/api/v2/monitor/health", None, {})

    def dags(self) -> list[dict[str, Any]]:
        """All DAGs that are not stale."""
        return list(self._call("GET", "/api/v2/dags?limit=100")["dags"])

    def import_errors(self) -> list[dict[str, Any]]:
        """DAG files that could not be loaded, with `filename` and `stack_trace`."""
        return list(self._call("GET", "/api/v2/importErrors")["import_errors"])

    def pause(self, dag_id: str, paused: bool = True) -> None:
        """Pause or unpause a DAG."""
        self._call("PATCH", f"/api/v2/dags/{quote(dag_id)}?update_mask=is_paused", {"is_paused": paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, **fields: Any) -> str:
        """Start a run of a DAG that is not paused; returns its run id. `fields` are added to the request."""
        # Our own run id makes the request idempotent: a second attempt finds the run that the first one
        # created.
        run_id = f"api__{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}_{secrets.token_hex(4)}"
        body = {"logical_date": None, "dag_run_id": run_id, "conf": dict(conf or {}), **fields}
        try:
            self._call("POST", f"/api/v2/dags/{quote(dag_id)}/dagRuns", body)
        except _Conflict:
            self.run(dag_id, run_id)
        return run_id

    def runs(self, dag_id: str, **filters: str | int) -> list[dict[str, Any]]:
        """Runs of a DAG, the youngest first; `filters` are query parameters."""
        query = urlencode({"order_by": "-run_after", "limit": 100, **filters})
        return list(self._call("GET", f"/api/v2/dags/{quote(dag_id)}/dagRuns?{query}")["dag_runs"])

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """One run, with its `state`."""
        return self._call("GET", self._run_path(dag_id, run_id))

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Task instances of a run, mapped ones one by one (`task_id`, `map_index`, `state`, `try_number`
        …)."""
        return list(self._call("GET", f"{self._run_path(dag_id, run_id)}/taskInstances?limit=100")["task_instances"])

    def links(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, str]:
        """URLs of the extra links of a task that has run, by their names."""
        path = f"{self._run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/links?map_index={map_index}"
        return dict(self._call("GET", path)["extra_links"])

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """An XCom value of a task."""
        path = f"{self._run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{quote(key)}"
        return self._call("GET", f"{path}?map_index={map_index}&deserialize=true")["value"]

    def asset_events(self) -> list[dict[str, Any]]:
        """Events of assets, with `uri` and `extra`."""
        return list(self._call("GET", "/api/v2/assets/events?limit=100")["asset_events"])

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1, map_index: int = -1) -> str:
        """The log of one try of a task, one event per line."""
        path = f"{self._run_path(dag_id, run_id)}/taskInstances/{quote(task_id)}/logs/{try_number}"
        content = self._call("GET", f"{path}?full_content=true&map_index={map_index}")["content"]
        return "\n".join(_log_line(event) for event in content)

    def clear(
        self, dag_id: str, run_id: str, task_ids: Sequence[str | tuple[str, int]] | None = None, *, only_failed: bool = False
    ) -> None:
        """Clear tasks of a run and all downstream ones; None means all. A mapped task is (task_id,
        map_index).
        """
        body: dict[str, Any] = {
            "dry_run": False,
            "dag_run_id": run_id,
            "only_failed": only_failed,
            "include_downstream": True,
            "reset_dag_runs": True,
        }
        if task_ids is not None:
            body["task_ids"] = [task if isinstance(task, str) else list(task) for task in task_ids]
        self._call("POST", f"/api/v2/dags/{quote(dag_id)}/clearTaskInstances", body)

    def fail(self, dag_id: str, run_id: str) -> None:
        """Mark a run as failed: its tasks that run are stopped."""
        self._call("PATCH", f"{self._run_path(dag_id, run_id)}?update_mask=state", {"state": "failed"})

    def wait(self, dag_id: str, run_id: str, *, seconds: float, progress: Callable[[list[dict[str, Any]]], None] | None = None) -> str:
        """Wait until a run has finished; returns `success` or `failed`. `progress` is called with the task
        instances each second.

        ServiceError if it takes longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        while True:
            state = str(self.run(dag_id, run_id)["state"])
            if progress is not None:
                progress(self.tasks(dag_id, run_id))
            if state in FINISHED:
                return state
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"Run {run_id} of {dag_id} is still {state} after {seconds:.0f} s. Its tasks: {self._states(dag_id, run_id)}"
                )
            time.sleep(1.0)

    def _states(self, dag_id: str, run_id: str) -> str:
        return ", ".join(f"{task['task_id']}={task['state']}" for task in self.tasks(dag_id, run_id))

    @staticmethod
    def _run_path(dag_id: str, run_id: str) -> str:
        return f"/api/v2/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        # With SQLite, Airflow sometimes returns 500 if the database is locked.
        attempts = Retrying(stop=stop_after_attempt(4), wait=wait_fixed(1), retry=retry_if_exception_type(_ServerTrouble), reraise=True)
        return attempts(self._call_once, method, path, body)

    def _call_once(self, method: str, path: str, body: Any) -> dict[str, Any]:
        if self._token is None:
            self._token = self._log_in()
        return self._send(method, path, body, {"Authorization": f"Bearer {self._token}"})

    def _log_in(self) -> str:
        answer = self._send("POST", "/auth/token", {"username": self._user, "password": self._password}, {})
        return str(answer["access_token"])

    def _send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=30)
        sent = {"Accept": "application/json", **headers, **({"Content-Type": "application/json"} if body is not None else {})}
        try:
            connection.request(method, self._path + path, json.dumps(body) if body is not None else None, sent)
            response = connection.getresponse()
            text = response.read().decode("utf-8", errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise _ServerTrouble(f"Airflow does not answer on {LOOPBACK}:{self._port} ({method} {path}): {error}") from error
        finally:
            connection.close()
        if response.status >= 400:
            kind = _KINDS.get(response.status, ServiceError)
            raise kind(f"Airflow refuses {method} {path}: {response.status} {response.reason}: {text[:2000]}")
        return dict(json.loads(text)) if text else {}


class _Conflict(ServiceError):
    pass


class _ServerTrouble(ServiceError):
    pass


_KINDS: dict[int, type[ServiceError]] = {409: _Conflict, 500: _ServerTrouble, 503: _ServerTrouble}


def _log_line(event: Any) -> str:
    if not isinstance(event, dict):
        return str(event)
    details = event.get("error_detail")
    return str(event.get("event", "")) + (f" {json.dumps(details)}" if details else "")
