"""Reading a table from the cluster while it is written to, as input for the next batch.

    unknown_marker   what CQL does not report, and how the state marks it
    rows             what to query for a table, and rows of the answer as rows of the commit log
    difference       what has to be merged into a row of the state so that it equals the cluster's
    frames           such rows as frames, in objects that a batch takes in as segments of one more node
    run              the documents of a run: its ranges, its progress, which tables are due

A snapshot is a replica with gaps: its cells carry their writetimes, so they merge with the log in any order. Nothing here knows a driver.
"""
