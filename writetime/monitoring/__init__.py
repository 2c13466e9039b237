"""The status of a pipeline, read from its bucket, for operators and for Prometheus. Read-only.

Strategy: one module per question: `nodes` (which nodes ship, and how fresh they are), `ledger` (the state of
a segment), `tables` (updates and events of each table), `checks` (results of verification and audit),
`ignored` (ignored objects), `watch` (problems), `status` (the status as text), `metrics`. The ledger may have
more than a hundred thousand entries, so nothing here lists it: lookups walk back from the last seal, or read
entries by name or hour. Must not know Airflow."""
