"""Spark jobs: one file per job (arguments, data frames, exit code), and the rooms that they share.

    ingest, publish, stream, bootstrap, verify, audit, maintain, pack_archive, erase, rebuild   the jobs
    stages/   the stages of a batch, functions for mapInArrow: scan, explode, merge_stream and merge_batch, typed_events …
    sinks/    what is written to: Iceberg tables, Kafka, Avro files, the quarantine
    state/    state shards in Lance
    session, daemon, job_exit, spark_errors   how a job runs and how it ends
    failures, rejected_tables   whose failure an error is, and a batch without the tables that fail
    promised_events   how many events the seals say there are, for the sinks
    data_source   segments as a Spark data source, for notebooks
    commands      the jobs as commands of `writetime`

They know the core; they must not know Airflow. Paths travel between driver and executors, bytes are opened in
the worker.
"""
