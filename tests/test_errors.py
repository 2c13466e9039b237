"""Errors tell a person and a machine the same, travel between processes, and say whether a retry helps."""

from __future__ import annotations

import inspect
import json
import pickle
import re

import pytest

from writetime import errors
from writetime.errors import BatchBusy, LeaseLost, StoreUnavailable, UnknownTable, WritetimeError

ALL = sorted(
    (kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, WritetimeError)), key=lambda k: k.__name__
)


def make(kind: type[WritetimeError]) -> WritetimeError:
    extra = {"table_id": "t"} if kind is UnknownTable else {}
    return kind("went wrong", operation="read a thing", obj="a/b", position=12, hint="Look at it.", **extra)


@pytest.mark.parametrize("kind", ALL)
def test_every_kind(kind: type[WritetimeError]) -> None:
    error = make(kind)
    assert kind.__doc__
    assert str(error).startswith("read a thing: a/b at position 12: went wrong")
    assert str(error).endswith("Look at it.")
    assert ("a retry may help" in str(error)) == error.retriable
    assert error.retriable == (kind in (StoreUnavailable, BatchBusy, LeaseLost))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (str(again), vars(again)) == (str(error), vars(error))
    told = json.loads(json.dumps(error.as_dict()))
    assert told["kind"] == kind.__name__
    assert (told["message"], told["position"], told["object"], told["hint"]) == ("went wrong", 12, "a/b", "Look at it.")


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__)) | {"WritetimeError"}
    assert drawn == {kind.__name__ for kind in ALL}


def test_less_can_be_said() -> None:
    assert str(WritetimeError("went wrong")) == "went wrong"
    assert str(WritetimeError("went wrong", position=0)) == "at position 0: went wrong"
    assert str(WritetimeError("went wrong", retriable=True)) == "went wrong (a retry may help)"


@pytest.mark.parametrize(
    "text",
    [
        "Failed to connect: jdbc:mysql://u:hunter2@h/db",
        'Could not connect to the endpoint URL: "http://u:hunter2@127.0.0.1:9/b/a"',
        'Failed to connect to proxy URL: "http://socks5://u:hunter2@127.0.0.1:9"',
        "No suitable driver found for jdbc:foo:x?password=hunter2",
        "403 GET https://h/b/o?X-Amz-Signature=hunter2&b=1",
    ],
)
def test_no_error_shows_the_password_of_a_url(text: str) -> None:
    """Libraries put their addresses into their messages, and some of ours pass these on."""
    error = pickle.loads(pickle.dumps(StoreUnavailable(text, operation="look", obj=text)))
    assert "hunter2" not in f"{error} {error!r} {error.as_dict()}"
    assert "**********" in str(error)
