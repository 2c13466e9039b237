"""The plugin that puts writetime's page into Airflow's menu, under `/writetime` of the API server.

Airflow executes this file in every one of its processes, so nothing is imported here: the app is made at the first request, in the process
that gets one. The parts it is made of (`writetime_page_*.py`) stand in `.airflowignore` for the same reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from threading import Lock
from typing import Any
from urllib.parse import urlencode, urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

PREFIX = "/writetime"
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Scope]]
_Send = Callable[[_Scope], Awaitable[None]]


def address(view: str, **query: object) -> str:
    """Where the page shows something, as a path on Airflow's own host."""
    return f"{_root()}{PREFIX}/{view}{'?' if query else ''}{urlencode(query)}"


def link(view: str, **query: object) -> str:
    """The same for people who are elsewhere, as far as `[api] base_url` says where Airflow is."""
    parts = urlsplit(conf.get("api", "base_url", fallback="") or "")
    return f"{parts.scheme}://{parts.netloc}{address(view, **query)}" if parts.netloc else address(view, **query)


class Page:
    """An ASGI app that is made when it is first asked."""

    def __init__(self) -> None:
        self._apps: Callable[[], Callable[[_Scope, _Receive, _Send], Awaitable[None]]] | None = None
        self._lock = Lock()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        await self._app()(scope, receive, send)

    def _app(self) -> Callable[[_Scope, _Receive, _Send], Awaitable[None]]:
        with self._lock:
            if self._apps is None:
                from writetime_page_access import Pages

                self._apps = Pages().app
            return self._apps()


def _root() -> str:
    """The path under which this Airflow is served."""
    return urlsplit(conf.get("api", "base_url", fallback="/") or "/").path.rstrip("/")


class WritetimePlugin(AirflowPlugin):
    """The page, and its entry in the menu."""

    name = "writetime_page"
    fastapi_apps = [{"app": Page(), "url_prefix": PREFIX, "name": "writetime"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "writetime",
            "href": address(""),
            "icon": address("files/icon.svg"),
            "destination": "nav",
            "url_route": "writetime",
        }
    ]
