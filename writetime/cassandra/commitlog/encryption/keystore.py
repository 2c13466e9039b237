"""Keystores of Java, as far as Cassandra keeps the keys of its encrypted commit logs in them (security/JKSKeyProvider).

    JCEKS     magic ce ce ce ce (`writetime.cassandra.commitlog.encryption.jceks`)
    PKCS12    a DER sequence (`writetime.cassandra.commitlog.encryption.pkcs12`); the default of keytool since Java 9
    JKS       magic fe ed fe ed; holds no secret keys, so there is nothing in it for a commit log

Passwords come from the environment or the caller. They and the keys never stand in an error, a log line or a repr. A key is opened when it
is asked for, so that a store may hold others under other passwords.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from writetime.cassandra.commitlog.encryption import jceks, pkcs12
from writetime.errors import ConfigError

PASSWORD_VARIABLE: Final = "WRITETIME_KEYSTORE_PASSWORD"  # noqa: S105 - a name
KEY_PASSWORD_VARIABLE: Final = "WRITETIME_KEYSTORE_KEY_PASSWORD"  # noqa: S105 - a name
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_DER_SEQUENCE = b"\x30"


class Keystore:
    """Secret keys by their alias. Case does not matter: Java stores aliases in lower case."""

    def __init__(self, path: str, entries: Mapping[str, Callable[[], bytes]]) -> None:
        """`entries` gives for each alias what opens its key, or raises ConfigError."""
        self.path = path
        self._entries = {alias.lower(): entry for alias, entry in entries.items()}
        self._opened: dict[str, bytes] = {}

    @classmethod
    def open(cls, path: str | Path, password: str, key_password: str | None = None) -> Keystore:
        """Read a keystore, of whichever kind it is. The key password is that of the store if none is given. Raises ConfigError."""
        key_password = password if key_password is None else key_password
        if not (_is_text(password) and _is_text(key_password)):
            raise ConfigError("its password is no valid text in UTF-8", operation="open a keystore", obj=str(path))
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", operation="open a keystore", obj=str(path)) from error
        with _libraries(str(path)):
            return cls(str(path), _entries(content, str(path), password, key_password))

    @classmethod
    def from_environment(cls, path: str | Path) -> Keystore:
        """As `open`; the passwords are those of WRITETIME_KEYSTORE_PASSWORD and, where set, WRITETIME_KEYSTORE_KEY_PASSWORD."""
        password = os.environ.get(PASSWORD_VARIABLE)
        if password is None:
            raise ConfigError(
                f"needs its password in the environment variable {PASSWORD_VARIABLE}, which is not set",
                operation="open a keystore",
                obj=str(path),
            )
        return cls.open(path, password, os.environ.get(KEY_PASSWORD_VARIABLE))

    def secret(self, alias: str) -> bytes:
        """The raw key of that alias. Raises ConfigError if there is none, or another password opens it."""
        alias = alias.lower()
        if alias not in self._opened:
            if alias not in self._entries:
                known = ", ".join(f"`{name}`" for name in sorted(self._entries)) or "none"
                raise ConfigError(f"holds no secret key `{alias}`; those it holds: {known}", operation="look for a key", obj=self.path)
            with _libraries(self.path):
                self._opened[alias] = self._entries[alias]()
        return self._opened[alias]

    def __repr__(self) -> str:
        return f"Keystore({self.path!r}, {len(self._entries)} keys)"


@contextmanager
def _libraries(path: str) -> Iterator[None]:
    """What reads keystores need not be installed where there are none."""
    try:
        yield
    except ImportError as error:
        hint = "It comes with pip install 'writetime[spark]'"
        raise ConfigError(f"it takes {error.name} to open it", operation="open a keystore", obj=path, hint=hint) from error


def _is_text(password: str) -> bool:
    """The environment may hold any bytes. Python's own error for what is no UTF-8 would quote the password."""
    return not any("\ud800" <= char <= "\udfff" for char in password)


def _entries(content: bytes, path: str, password: str, key_password: str) -> Mapping[str, Callable[[], bytes]]:
    if content.startswith(jceks.MAGIC):
        return jceks.entries(content, path, password, key_password)
    if content.startswith(_DER_SEQUENCE):
        return pkcs12.entries(content, path, password, key_password)
    if content.startswith(_JKS_MAGIC):
        raise ConfigError(
            "is of type JKS, which cannot hold secret keys",
            operation="open a keystore",
            obj=path,
            hint="Name the keystore that the node itself uses: JCEKS or PKCS12",
        )
    raise ConfigError("is no Java keystore: neither JCEKS nor PKCS12", operation="open a keystore", obj=path)
