"""Proof that tables are read from a cluster correctly while their log is ingested (`make prove NAME=bootstrap`).

__main__   the command line
run        the acts: cluster, shippers, session, readers, kills, and what is compared at quiet points
workload   the tables, and what is written to them
topics     what an upsert consumer of the topics holds
report     the rows that differ
sabotage   a rule that can be broken, and must be noticed
child      a job as a process; daemon: Spark's workers under a sabotage
live       one node and one pipeline in turns, for tests of tables without a log
"""
