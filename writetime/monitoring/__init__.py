"""The status of a pipeline, read from its bucket, for operators and for Prometheus. Read-only.

Strategy: one module per question: `nodes` (which nodes ship, and how fresh they are), `ledger` (the state of
a segment), `tables` (updates and events of each table), `checks` (results of verification and audit),
`complete_until`, `ignored` (ignored objects), `overview` (all of it, read once), `watch` (problems), `health` (a level
for each table), `status` and `cost_report` (as text), `metrics`. The ledger may have
more than a hundred thousand entries, so nothing here lists it: lookups walk back from the last seal, or read
entries by name or hour. Must not know Airflow."""
