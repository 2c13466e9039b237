"""Reading a table from the ring while it is written to, and putting what is read through the one door.

    opaque       what CQL does not tell, and how the state marks it
    rows         what to ask of the ring, and rows of an answer as rows of the commit log
    difference   what has to be merged into a row of the state so that it is the ring's
    frames       such rows as frames, in objects that a batch takes in as one more node's segments
    run          the documents of a run: its ranges, how far it is, which tables are due

A snapshot is a replica with gaps: its cells carry their writetimes, so they merge with the log in any order. Nothing here knows a driver.
"""
