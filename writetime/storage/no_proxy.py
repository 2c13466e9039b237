"""Which URLs need no proxy, by NO_PROXY of the environment.

Strategy: libraries read this variable in different ways: urllib, and so botocore, knows no networks, httpx makes URLs of
the entries. Here entries are names (with all names below them), addresses, networks, each with a port or without one, or
`*`. Must not know a client.
"""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

_PORTS: Final = {"http": 80, "https": 443}
_WITH_PORT: Final = re.compile(r"(\[[^\]]*\]|[^:]*):(\d{1,5})")


def bypasses(no_proxy: str, url: str) -> bool:
    """Whether a URL needs no proxy, by the value of NO_PROXY."""
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS.get(parts.scheme)
    return any(_covers(entry.strip().lower(), host, port) for entry in no_proxy.split(","))


def _covers(entry: str, host: str, port: int | None) -> bool:
    if entry == "*":
        return True
    if found := _WITH_PORT.fullmatch(entry):
        entry, wanted = found[1], int(found[2])
        if wanted != port:
            return False
    entry = entry.strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        name = entry.removeprefix("*").strip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
    try:
        return address in ip_network(entry, strict=False)
    except ValueError:
        return False
