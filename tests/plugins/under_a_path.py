"""The page under a path of a host, as the app of the whole API server serves it: see test_path. Runs in a process of its
own, since Airflow reads `base_url` once."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urlsplit

from tests.plugins.live_app import Server, report

VIEWS = ("", "segments", "batches", "batches/3", "tables", "checks", "quarantine", "cost", "replay", "nothing")


def main() -> None:
    from airflow.configuration import conf

    parts = urlsplit(conf.get("api", "base_url"))
    server = Server(parts.path)
    client, headers = server.client, server.log_in("operator")

    def ask(path: str, method: str = "GET", **more: Any) -> Any:
        given = {**headers, **more.pop("headers", {})}
        return client.request(method, f"{parts.path}/writetime/{path}", headers=given, follow_redirects=False, **more)

    pages = {view: ask(view) for view in VIEWS}
    links = sorted({html.unescape(link) for page in pages.values() for link in re.findall(r'(?:href|src|action)="([^"#]*)', page.text)})
    below = [link for link in links if link.startswith(f"{parts.path}/writetime/")]
    menu = client.get(f"{parts.path}/api/v2/plugins", headers=headers).json()["plugins"]
    hour = {"start": "2020-01-01T00:00", "end": "2020-01-01T01:00"}
    own = f"{parts.scheme}://{parts.netloc}"
    buttons = {}
    for name, sent in {
        "browser": {"origin": own, "host": parts.netloc},
        "proxy": {"origin": own, "host": "internal:8080"},
        "other site": {"origin": "https://elsewhere.example", "host": "internal:8080"},
    }.items():
        answer = ask("replay", "POST", data=hour, headers=sent)
        there = answer.headers.get("location", "")
        shown = ask(there.removeprefix(f"{parts.path}/writetime/")).text if there else ""
        buttons[name] = [answer.status_code, there.partition("?")[0], re.findall(r'data-top href="([^"]*/runs/)', shown)]
    redirect = ask("segments/?node=x", headers={"host": "internal:8080"})
    cookie = client.get(f"{parts.path}/writetime/", headers={"cookie": f"_token={headers['authorization'].removeprefix('Bearer ')}"})
    report(
        {
            "pages": {view: page.status_code for view, page in pages.items()},
            "elsewhere": [link for link in links if link not in below],
            "links": {link: client.get(link, headers=headers).status_code for link in below},
            "menu": [[view["href"], view["icon"]] for each in menu if each["name"] == "writetime_page" for view in each["external_views"]],
            "buttons": buttons,
            "redirect": [redirect.status_code, redirect.headers["location"]],
            "with the cookie": cookie.status_code,
            "without a login": client.get(f"{parts.path}/writetime/").status_code,
        }
    )


if __name__ == "__main__":
    main()
