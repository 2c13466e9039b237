"""Java keystores with the keys of Cassandra's encrypted commit logs (security/JKSKeyProvider).

    JCEKS     magic ce ce ce ce (`writetime.cassandra.commitlog.encryption.jceks`)
    PKCS12    a DER sequence (`writetime.cassandra.commitlog.encryption.pkcs12`); the default of keytool since Java 9
    JKS       magic fe ed fe ed; cannot hold secret keys and is rejected

Passwords come from the environment or the caller. Errors, logs and reprs contain neither passwords nor keys.
A key is decrypted on first use, so a store may contain other keys with other passwords.
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
    """Secret keys by alias. Case is ignored: Java stores aliases in lower case."""

    def __init__(self, path: str, entries: Mapping[str, Callable[[], bytes]]) -> None:
        """`entries` maps each alias to a function that returns its key or raises ConfigError."""
        self.path = path
        self._entries = {alias.lower(): entry for alias, entry in entries.items()}
        self._opened: dict[str, bytes] = {}

    @classmethod
    def open(cls, path: str | Path, password: str, key_password: str | None = None) -> Keystore:
        """Read a keystore of any supported type. The key password defaults to the store's password. Raises
        ConfigError."""
        key_password = password if key_password is None else key_password
        if not (_is_text(password) and _is_text(key_password)):
            raise ConfigError("the keystore password is not valid UTF-8", operation="open a keystore", obj=str(path))
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"cannot read the keystore: {error.strerror}", operation="open a keystore", obj=str(path)) from error
        with _libraries(str(path)):
            return cls(str(path), _entries(content, str(path), password, key_password))

    @classmethod
    def from_environment(cls, path: str | Path) -> Keystore:
        """Like `open`, with the passwords of WRITETIME_KEYSTORE_PASSWORD and WRITETIME_KEYSTORE_KEY_PASSWORD
        (optional)."""
        password = os.environ.get(PASSWORD_VARIABLE)
        if password is None:
            raise ConfigError(
                f"keystore password is missing: the environment variable {PASSWORD_VARIABLE} is not set",
                operation="open a keystore",
                obj=str(path),
            )
        return cls.open(path, password, os.environ.get(KEY_PASSWORD_VARIABLE))

    def secret(self, alias: str) -> bytes:
        """The raw key of that alias. Raises ConfigError if it does not exist or its password is wrong."""
        alias = alias.lower()
        if alias not in self._opened:
            if alias not in self._entries:
                known = ", ".join(f"`{name}`" for name in sorted(self._entries)) or "none"
                raise ConfigError(f"the keystore has no secret key `{alias}`; its keys: {known}", operation="look for a key", obj=self.path)
            with _libraries(self.path):
                self._opened[alias] = self._entries[alias]()
        return self._opened[alias]

    def __repr__(self) -> str:
        return f"Keystore({self.path!r}, {len(self._entries)} keys)"


@contextmanager
def _libraries(path: str) -> Iterator[None]:
    """The libraries that read keystores are optional dependencies."""
    try:
        yield
    except ImportError as error:
        hint = "Install it with pip install 'writetime[spark]'"
        raise ConfigError(f"the Python package {error.name} is not installed", operation="open a keystore", obj=path, hint=hint) from error


def _is_text(password: str) -> bool:
    """Whether the password is valid UTF-8. Checked here because Python's own error would quote the
    password."""
    return not any("\ud800" <= char <= "\udfff" for char in password)


def _entries(content: bytes, path: str, password: str, key_password: str) -> Mapping[str, Callable[[], bytes]]:
    if content.startswith(jceks.MAGIC):
        return jceks.entries(content, path, password, key_password)
    if content.startswith(_DER_SEQUENCE):
        return pkcs12.entries(content, path, password, key_password)
    if content.startswith(_JKS_MAGIC):
        raise ConfigError(
            "the keystore is of type JKS, which cannot hold secret keys",
            operation="open a keystore",
            obj=path,
            hint="Use the keystore that the node itself uses: JCEKS or PKCS12",
        )
    raise ConfigError("the file is not a JCEKS or PKCS12 keystore", operation="open a keystore", obj=path)
