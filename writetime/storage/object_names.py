"""Validation of object names. The rules are those that every backend supports, so that a bucket can move.
Must not know a store.
"""

from __future__ import annotations

import re

from writetime.errors import StoreError

_LONGEST_NAME = 1024
_LONGEST_PART = 220
_OWN = ".writetime"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def is_name(text: str) -> bool:
    """Whether the text is a valid object name."""
    return reason_invalid(text) is None


def require_name(name: str, operation: str) -> None:
    """StoreError unless `name` is one or more parts with `/` between, none of them empty, `.` or `..`,
    without control characters."""
    if (why := reason_invalid(name)) is not None:
        raise StoreError(f"invalid object name: {why}", operation=operation, obj=ascii(name))


def reason_unprintable(text: str) -> str | None:
    """Why no name and no path may have these characters; None if they may."""
    if _CONTROL.search(text):
        return "control characters are not allowed"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it cannot be encoded in UTF-8"
    return None


def require_next(name: str, after: bytes, prefix: str) -> bytes:
    """The name in UTF-8, as `after` of the next call. ValueError if the listing of `prefix` is out of
    order."""
    found = name.encode()
    if found <= after or not name.startswith(prefix):
        raise ValueError(f"the listing is out of order at {name!a}")
    return found


def reason_invalid(name: str) -> str | None:
    """Why the text is no valid object name; None if it is one."""
    parts = name.split("/")
    if not all(parts) or "." in parts or ".." in parts:
        return "empty, `.` and `..` parts are not allowed"
    if (why := reason_unprintable(name)) is not None:
        return why
    lengths = [len(part.encode()) for part in parts]
    if max(lengths) > _LONGEST_PART or sum(lengths) + len(parts) > _LONGEST_NAME:
        return f"at most {_LONGEST_PART} bytes in a part and {_LONGEST_NAME} in total"
    return f"`{_OWN}` is reserved for the store" if parts[0] == _OWN else None
