"""A batch: one pipeline run with a frozen input, from `plan` over ingest to `archive`, and the ledger of segments beside it.

    plan ──► manifest.json ──► (the ingest job) ──► schema.json, sealed.json ──► archive + ledger

Everything lives in the bucket as JSON that a person can `cat`. A batch is *sealed* when sealed.json exists; creating it is the one
commit point. Batches are numbered without gaps and at most one is unsealed: rerunning an unsealed batch repeats it exactly,
because the manifest pins all it depends on; rerunning a sealed one does nothing. No Spark and no Airflow here.
"""
