"""A batch: one run of the pipeline with a frozen input, from planning over ingest to archiving, and the ledger of segments.

    planner ──► manifest.json ──► (the ingest job) ──► schema.json, sealed.json ──► archiver, ledger

Everything is JSON in the bucket that a person can `cat`. A batch is *sealed* when sealed.json exists; creating it is the one commit
point. Batches are numbered without gaps and at most one is unsealed: rerunning an unsealed batch repeats it exactly, because the
manifest pins all it depends on; rerunning a sealed one does nothing.

    documents                the JSON documents of batches and ledger
    pinned, identity, chains what a batch, a pipeline and a chain of batches are bound to
    segment_check            one segment, checked as ingest would
    node_facts, node_logs, truncations, truncation_reports, completeness   what nodes and their logs report
    archiver, archive_packing, retention   the life of a segment after the seal
    void, rebuild, erase, erasures, conflicts   decisions of people
    quarantine               what could not be used, and its release
    bootstrap                reading tables from the cluster
    verification, audit      comparisons with the cluster, and of replicas' logs
    batch_history, batch_report, maintenance_report, publish_progress, job_result   what others are shown

No Spark and no Airflow here.
"""
