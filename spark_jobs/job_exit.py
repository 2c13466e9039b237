"""How the jobs end when they fail: said on stderr for whoever reads it, logged with its fields, and left as last words for the task that
started the job (`writetime.pipeline.job_result`). A new job puts `ends_telling` on its `main`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps

import structlog

from writetime.errors import WritetimeError
from writetime.pipeline.job_result import leave_error

log = structlog.get_logger()

Main = Callable[[list[str] | None], int]


def ends_telling(what: str) -> Callable[[Main], Callable[..., int]]:
    """Decorates a job's `main`. A WritetimeError makes its exit code 1; what nobody expected goes on, with its traceback. `what` has
    failed: "publishing", say."""

    def decorate(main: Main) -> Callable[..., int]:
        @wraps(main)
        def told(arguments: list[str] | None = None) -> int:
            try:
                return main(arguments)
            except WritetimeError as error:
                log.error(f"{what} failed", **error.as_dict())
                print(f"{what} failed: {error}", file=sys.stderr)  # noqa: T201
                leave_error(f"{what} failed", error)
                return 1
            except Exception as error:
                leave_error(f"{what} failed", error)
                raise

        return told

    return decorate
