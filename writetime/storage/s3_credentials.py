"""The credentials of S3's client as they are now: files that are rotated or written later, roles that answer later.

Strategy: the library looks for credentials once, when a client is made, and keeps what it found, or that it found none. Here
it is asked again: for those of a file every `EVERY` seconds, while there are none every `SOON` seconds, and after the
service has refused them; not for those of the environment, which a process keeps. A role's credentials are renewed by the
library itself. What the service refused is sent once more if the credentials have changed meanwhile, also in the middle of
an upload. If nothing usable is found, the last credentials stay: a file may be half-written. Must not log or show them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import botocore.session
from botocore import exceptions as boto
from botocore.credentials import Credentials

EVERY: Final = 30.0
SOON: Final = 5.0
_ENVIRONMENT: Final = "env"
_OF_A_FILE: Final = frozenset({"shared-credentials-file", "config-file"})
_INVALID: Final = frozenset({"ExpiredToken", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId"})
_REFUSED: Final = _INVALID | {"SignatureDoesNotMatch", "AccessDenied", "Forbidden", "400", "401", "403"}
"""The numbers are those of answers without a body."""


class LiveCredentials:
    """What the library's signer asks for credentials before each request. `find` looks for them anew; None: there are none."""

    def __init__(self, find: Callable[[], Any] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._find = find or _found
        self._clock = clock
        self._lock = threading.Lock()
        self._credentials: Any = None
        self._asked = -EVERY
        self._used = threading.local()

    def load_credentials(self) -> LiveCredentials:
        """As the library's own provider of credentials, when a client is made: those of the environment are the client's for good."""
        with self._lock, suppress(boto.BotoCoreError):
            self._ask()
        return self

    @property
    def method(self) -> str | None:
        return getattr(self._credentials, "method", None)

    @property
    def account_id(self) -> str | None:
        return getattr(self._credentials, "account_id", None)

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        return lambda: getattr(self._credentials, name, None)

    def get_frozen_credentials(self) -> Any:
        """The credentials for one request. Raises NoCredentialsError, and what the library raises for a role."""
        with self._lock:
            waits = SOON if self._credentials is None else EVERY if self._is_of_a_file() else None
            if waits is not None and self._clock() >= self._asked + waits:
                self._ask()
            found = self._credentials
        if found is None:
            raise boto.NoCredentialsError
        frozen = found.get_frozen_credentials()
        self._used.last = frozen
        return frozen

    def retry_if_renewed(self, response: Any = None, **_: Any) -> int | None:
        """A hook of the library that decides about retries: 0 s after a refusal, if there are other credentials now; None: it
        is not for this hook to decide."""
        if response is None or response[1].get("Error", {}).get("Code") not in _REFUSED:
            return None
        code = response[1]["Error"]["Code"]
        used = getattr(self._used, "last", None)
        with self._lock:
            is_static = type(self._credentials) is Credentials
            waits = SOON if is_static else EVERY
            if (is_static or code in _INVALID) and self.method != _ENVIRONMENT and self._clock() >= self._asked + waits:
                self._ask()
            found = self._credentials
        try:
            return 0 if used is not None and found is not None and found.get_frozen_credentials() != used else None
        except boto.BotoCoreError:
            return None

    def _is_of_a_file(self) -> bool:
        return type(self._credentials) is Credentials and self._credentials.method in _OF_A_FILE

    def _ask(self) -> None:
        self._asked = self._clock()
        try:
            self._credentials = self._find() or self._credentials
        except boto.BotoCoreError:
            if self._credentials is None:
                raise


def _found() -> Any:
    # A session keeps what it read of the files.
    return botocore.session.get_session().get_credentials()
