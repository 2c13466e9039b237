"""Batches: runs of the pipeline over a fixed input, from planning to archiving, and the ledger of segments.

    planner ──► manifest.json ──► (the ingest job) ──► schema.json, sealed.json ──► archiver, ledger

Everything is JSON in the bucket, readable with `cat`. A batch is *sealed* when sealed.json exists; creating it
is the only commit point. Batches are numbered without gaps and at most one is open. Rerunning an open batch
repeats it exactly, because the manifest pins its input; rerunning a sealed batch does nothing.

    documents                the JSON documents of batches and ledger
    pinned, identity, chains the inputs of a batch, the id of a pipeline, chains of batches
    segment_check            checks of one segment, as in ingest
    node_facts, node_logs, truncations, truncation_reports, completeness   what nodes and their logs report
    archiver, archive_packing, retention   segments after the seal
    incoming, newest_segments   what waits in the bucket, and what of it is new for certain
    void, rebuild, again, erase, erasures, unreached, conflicts   decisions of operators
    quarantine               rejected frames and segments, and their release
    bootstrap                reading tables from the cluster
    verification, comparisons, audit   comparisons with the cluster, how far they have come, and between replicas' logs
    batch_history, batch_report, maintenance_report, publish_progress, job_result   reports for the page, the metrics and Airflow

Does not know Spark or Airflow.
"""
