"""The plugin that adds writetime's page to Airflow's menu, under `/writetime` of the API server.

Strategy: Airflow executes this file in each of its processes, so the app is imported and created only at the
first request. For the same reason its modules (`writetime_page_*.py`) are listed in `.airflowignore`."""

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
    """The path of a view on Airflow's host."""
    return f"{_root()}{PREFIX}/{view}{'?' if query else ''}{urlencode(query)}"


def link(view: str, **query: object) -> str:
    """The absolute URL of a view, if `[api] base_url` is set; otherwise its path."""
    parts = urlsplit(conf.get("api", "base_url", fallback="") or "")
    return f"{parts.scheme}://{parts.netloc}{address(view, **query)}" if parts.netloc else address(view, **query)


class Page:
    """An ASGI app that is created at the first request."""

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
    """The path under which Airflow is served."""
    return urlsplit(conf.get("api", "base_url", fallback="/") or "/").path.rstrip("/")


class WritetimePlugin(AirflowPlugin):
    """The page and its menu entry."""

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
