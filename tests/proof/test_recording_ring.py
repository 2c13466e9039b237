"""A real node does what the harness promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from proof.harness.node import Node


@pytest.mark.cassandra
def test_a_node_answers_and_captures(cassandra_node: Node) -> None:
    session = cassandra_node.session()
    session.execute("CREATE KEYSPACE ring WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute("CREATE TABLE ring.captured (k int PRIMARY KEY, v text) WITH cdc = true")
    session.execute("INSERT INTO ring.captured (k, v) VALUES (1, 'one')")
    assert [tuple(row) for row in session.execute("SELECT k, v FROM ring.captured")] == [(1, "one")]
    assert list(cassandra_node.cdc_raw.glob("CommitLog-7-*.log"))
    assert "UN  127.0.0.1" in cassandra_node.nodetool("status")


@pytest.mark.cassandra
def test_a_deletion_that_a_node_forgets(cassandra_node: Node) -> None:
    """Why the proof gives no collection a name that begins with a letter beyond ASCII
    (`generate.tables.safe_name`): what the node answers from its memory is in no SSTable, and in no commit
    log either."""
    session = cassandra_node.session()
    session.execute("CREATE KEYSPACE forgets WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    session.execute('CREATE TABLE forgets.deletions (k int PRIMARY KEY, "é" set<int>, e set<int>)')
    session.execute('INSERT INTO forgets.deletions (k, "é", e) VALUES (1, {1}, {1})')
    cassandra_node.nodetool("flush", "forgets")
    session.execute('DELETE "é" FROM forgets.deletions WHERE k = 1')
    assert [tuple(row) for row in session.execute('SELECT "é", e FROM forgets.deletions')] == [(None, {1})]
    cassandra_node.nodetool("flush", "forgets")
    assert [tuple(row) for row in session.execute('SELECT "é", e FROM forgets.deletions')] == [({1}, {1})]
