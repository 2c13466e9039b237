"""Reading a table from the cluster while it is written to, as input for the next batch.

    rows         the query for a table, and rows of the answer as rows of the commit log
    difference   the row to merge into a row of the state so that it equals the cluster's
    frames       such rows as frames, in objects that a batch ingests as segments of an additional node
    run          the documents of a run: its ranges, its progress, which tables are due

A snapshot is like a replica with gaps: its cells have writetimes, so they merge with the log in any order. What
CQL does not report has stand-ins (`writetime.cassandra.merge.unknown_marker`). Does not know a driver.
"""
