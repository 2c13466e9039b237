"""Proxies of the environment, and the hosts that need none."""

from __future__ import annotations

import pytest

from spark_jobs.sinks.http_proxy import proxy_of
from writetime.errors import ConfigError
from writetime.storage.no_proxy import bypasses


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("no_proxy", "url", "expected"),
    [
        ("", "http://a", False),
        (" , ,", "http://a", False),
        ("*", "http://a", True),
        ("localhost,::1", "http://[::1]:8081", True),
        ("localhost,[::1]", "http://[::1]:8081", True),
        ("[::1]:8081", "http://[::1]:8081", True),
        ("[::1]:8082", "http://[::1]:8081", False),
        ("fd00::/8", "http://[fd12::7]:8081", True),
        ("fd00::/8", "http://[fe80::7]:8081", False),
        ("10.0.0.0/8, fe80::/10", "http://10.1.2.3", True),
        ("10.0.0.0/8", "http://11.1.2.3", False),
        ("10.0.0.0/8", "http://registry", False),
        ("10.1.2.3", "http://10.1.2.3", True),
        ("registry", "http://registry", True),
        ("Registry", "http://REGISTRY:8081", True),
        ("example.com", "http://registry.example.com", True),
        (".example.com", "http://registry.example.com", True),
        ("*.svc.cluster.local", "http://registry.svc.cluster.local", True),
        ("example.com", "http://notexample.com", False),
        ("registry:8081", "http://registry:8081", True),
        ("registry:443", "https://registry", True),
        ("registry:8082", "http://registry:8081", False),
        ("a,b,registry", "http://registry.", True),
    ],
)
def test_hosts_that_need_no_proxy(no_proxy: str, url: str, expected: bool) -> None:
    assert bypasses(no_proxy, url) is expected


@pytest.mark.parametrize(
    ("name", "value", "url", "proxy", "login"),
    [
        ("HTTP_PROXY", "http://proxy:3128", "http://r", "http://proxy:3128", None),
        ("https_proxy", "proxy.example:3128", "https://r", "http://proxy.example:3128", None),
        ("ALL_PROXY", "http://proxy:3128/", "https://r", "http://proxy:3128", None),
        ("HTTP_PROXY", "http://me:pa#ss/w?@rd%40@proxy:3128", "http://r", "http://proxy:3128", ("me", "pa#ss/w?@rd@")),
        ("HTTP_PROXY", "http://[fd00::1]:3128", "http://r", "http://[fd00::1]:3128", None),
        ("HTTPS_PROXY", "http://proxy:3128", "http://r", None, None),
        ("HTTPS_PROXY", "socks5://p:1", "http://r", None, None),
    ],
)
def test_proxies(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, url: str, proxy: str | None, login: tuple[str, str] | None
) -> None:
    monkeypatch.setenv(name, value)
    found = proxy_of(url)
    assert (None if found is None else str(found.url)) == proxy
    assert found is None or found.auth == login
    monkeypatch.setenv("NO_PROXY", "r")
    assert proxy_of(url) is None


@pytest.mark.parametrize(
    "value", ["socks5://me:hunter2@p:1", "http://me:hunter2@a b:1", "ftp://me:hunter2@p:1", "http://me:hunter2@p:port", "http://"]
)
def test_a_proxy_that_cannot_be_used_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    with pytest.raises(ConfigError) as caught:
        proxy_of("http://r")
    assert caught.value.obj == "ALL_PROXY"
    assert "hunter2" not in str(caught.value)
