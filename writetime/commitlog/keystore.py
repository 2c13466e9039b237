"""Java keystores: where Cassandra's nodes keep the keys of their encrypted commit logs.

Passwords come from the environment or the caller; they and the keys never stand in an error, a log line or a repr.
"""

from __future__ import annotations

from writetime.errors import ConfigError


class Keystore:
    """Secret keys by their alias, which is compared without regard to case, as Java does."""

    def __init__(self, path: str, secrets: dict[str, bytes]) -> None:
        self.path = path
        self._secrets = {alias.lower(): secret for alias, secret in secrets.items()}

    def secret(self, alias: str) -> bytes:
        """The key of that alias. Raises ConfigError if there is none."""
        key = self._secrets.get(alias.lower())
        if key is None:
            raise ConfigError(f"it holds no secret key `{alias}`", operation="look for a key", obj=self.path)
        return key

    def __repr__(self) -> str:
        return f"Keystore({self.path!r}, {len(self._secrets)} keys)"
