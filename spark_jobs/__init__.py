"""Spark jobs: one file per job (arguments, data frames, exit code), and what they share.

    ingest.py    a batch: scan, shuffle, join into the state, commit changes, state and current tables, seal
    publish.py   drain the outbox (the changes tables) to Kafka
    maintain.py  drop from the state what may be forgotten
    stages of a batch, functions for mapInArrow: scan.py (survey, route), explode.py, join.py (with plain.py), events.py
    shards.py  state shards;  warehouse.py  Iceberg tables, with evolve.py;  kafka.py  publishers;  session.py  the Spark session
    rows.py  rows as Arrow takes them;  runs.py  sorted batches;  telling.py  what events tell;  checks.py, sound.py  usable values

They know the core; they must not know Airflow. Paths travel between driver and executors, bytes are opened in the worker.
"""
