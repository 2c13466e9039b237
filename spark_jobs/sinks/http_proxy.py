"""The proxy for a URL, by the environment's HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

Strategy: httpx reads these variables itself, but makes URLs of the entries of NO_PROXY, so that an IPv6 address, a network
or a space there is an error of its own. Here its entries are those of `writetime.storage.no_proxy`, and a password may have
any character. Must not know a registry.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

import httpx

from writetime.errors import ConfigError
from writetime.storage.no_proxy import bypasses

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+)(:\d{1,5})?")
_OPERATION: Final = "find the HTTP proxy"


def proxy_of(url: str) -> httpx.Proxy | None:
    """The proxy for a URL; None: there is none. ConfigError for a proxy that cannot be used."""
    found, scheme = getproxies_environment(), urlsplit(url).scheme
    kind = next((kind for kind in (scheme, "all") if found.get(kind)), None)
    if kind is None or bypasses(found.get("no", ""), url):
        return None
    return _proxy(f"{kind.upper()}_PROXY", found[kind])


def _proxy(variable: str, text: str) -> httpx.Proxy:
    """A proxy's URL, whose password may have any character. No error shows it."""
    scheme, separator, rest = text.partition("://")
    scheme, rest = (scheme.lower(), rest) if separator else ("http", text)
    login, _, address = rest.rpartition("@")
    address = address.rstrip("/")
    if scheme.startswith("socks") and find_spec("socksio") is None:
        hint = "Name an HTTP proxy, or list the registry's host in NO_PROXY."
        raise ConfigError("SOCKS proxies are not supported", operation=_OPERATION, obj=variable, hint=hint)
    if scheme not in ("http", "https", "socks5", "socks5h") or _ADDRESS.fullmatch(address) is None:
        raise ConfigError("its value is not the URL of a proxy: http://[user:password@]host:port", operation=_OPERATION, obj=variable)
    user, _, password = login.partition(":")
    try:
        return httpx.Proxy(f"{scheme}://{address}", auth=(unquote(user), unquote(password)) if login else None)
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError("its value is not the URL of a proxy", operation=_OPERATION, obj=variable) from error
