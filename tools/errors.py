"""What can go wrong with set-up and services. Each message says what was tried, and what a person should do next."""

from __future__ import annotations


class ToolError(Exception):
    """Base of all errors that the tools raise on purpose."""


class MissingPrerequisite(ToolError):
    """A program that has to be installed by the system is not there."""


class JarError(ToolError):
    """The jar lock file is wrong, or an artefact is not what it promises."""


class ServiceError(ToolError):
    """A service did not start, died, did not get ready in time, or answered with an error."""
