"""One SparkContext for the many batches of a test process.

Strategy: a job makes its session and stops it, and with its context go Python's workers, which take seconds
to be there again: more than a batch of a test does. So as long as `shared` holds, stopping a session ends
what is cached, and nothing else, and making one makes a new session of the context that is there, with
settings and catalogs of its own. Another master, other jars or other memory are another context. Spark counts
what a session may set by itself as `spark.sql.*`; three of these are a context's all the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

_OF_A_CONTEXT: Final = ("spark.sql.extensions", "spark.sql.warehouse.dir", "spark.sql.codegen.cache.maxEntries")
_OF_NOBODY: Final = ("spark.app.name", "spark.sql.warehouse.dir")
"""What differs from test to test and changes nothing: no table of ours lies in Spark's own warehouse."""


class _Contexts:
    """The context at hand, and with what it was made."""

    def __init__(self) -> None:
        self._make, self._end = SparkSession.Builder.getOrCreate, SparkSession.stop
        self._root: SparkSession | None = None
        self._made_with: Mapping[str, str] = {}

    def session(self, builder: Any) -> SparkSession:
        """In place of `SparkSession.Builder.getOrCreate`."""
        if SparkSession._instantiatedSession is not None:
            return self._make(builder)
        options = {key: str(value) for key, value in builder._options.items()}
        fixed = {key: value for key, value in options.items() if not key.startswith("spark.sql.") or key in _OF_A_CONTEXT}
        compared = {key: value for key, value in fixed.items() if key not in _OF_NOBODY}
        if self._root is None or self._made_with != compared:
            self.end()
            context = SparkContext.getOrCreate(SparkConf().setAll(list(fixed.items())))
            self._root, self._made_with = SparkSession(context), compared
        session = self._root.newSession()
        for key in options.keys() - fixed.keys():
            session.conf.set(key, options[key])
        self._is_active(session)
        return session

    def stop(self, session: SparkSession) -> None:
        """In place of `SparkSession.stop`."""
        if self._root is None or session.sparkContext is not self._root.sparkContext:
            self._end(session)
            return
        session.catalog.clearCache()
        for rdd in session.sparkContext._jsc.getPersistentRDDs().values():
            rdd.unpersist()
        self._is_active(None)

    def end(self) -> None:
        """Stop the context, if there is one."""
        if self._root is not None:
            root, self._root = self._root, None
            self._end(root)

    def _is_active(self, session: SparkSession | None) -> None:
        assert self._root is not None
        java = SparkSession._get_j_spark_session_class(self._root._jvm)
        java.clearActiveSession()
        java.clearDefaultSession()
        if session is not None:
            java.setDefaultSession(session._jsparkSession)
            java.setActiveSession(session._jsparkSession)
        SparkSession._instantiatedSession = SparkSession._activeSession = session


_CONTEXTS: Final = _Contexts()


@contextmanager
def shared() -> Iterator[None]:
    """Sessions of this process share a context meanwhile."""
    with (
        mock.patch.object(SparkSession.Builder, "getOrCreate", lambda builder: _CONTEXTS.session(builder)),
        mock.patch.object(SparkSession, "stop", lambda session: _CONTEXTS.stop(session)),
    ):
        try:
            yield
        finally:
            _CONTEXTS.end()


@pytest.fixture
def own_jvm() -> Iterator[None]:
    """Sessions made in this test run in a JVM that no other test of this process has used: its classes are those of the jars that
    its first session names, and its environment, which Spark's workers inherit, is the one of that moment."""
    _end_jvm()
    yield
    _end_jvm()


def _end_jvm() -> None:
    """End the JVM of this process, if there is one. The next session starts another."""
    _CONTEXTS.end()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=60)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session", autouse=True)
def _one_context() -> Iterator[None]:
    with shared():
        yield
