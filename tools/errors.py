"""Errors of set-up and services. Each message states what failed and what to do next."""

from __future__ import annotations


class ToolError(Exception):
    """Base of all errors that the tools raise."""


class MissingPrerequisite(ToolError):
    """A program that must be installed by the system is missing."""


class JarError(ToolError):
    """The jar lock file is invalid, or an artefact does not match it."""


class ServiceError(ToolError):
    """A service did not start, died, was not ready in time, or returned an error."""
