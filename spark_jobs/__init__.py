"""Spark jobs: one file per job (arguments, data frames, exit code), and what they share.

    ingest.py    a batch: scan frames, shuffle, fold into the state, commit changes, state and current tables, seal
    publish.py   drain the outbox (the changes tables) to Kafka
    session.py   the Spark session;  warehouse.py  Iceberg tables;  state.py  state shards;  rows.py  rows as Arrow takes them
    frames.py    scanning and routing;  fold.py  the join;  kafka.py  publishers

They know the core; they must not know Airflow. Paths travel between driver and executors, bytes are opened in the worker.
"""
