"""What the bucket says about a pipeline, for people and for Prometheus. Reads only.

One module per question: `nodes` (which nodes ship, and how fresh they are), `ledger` (the state of a segment), `tables` (what each table
got), `checks` (results of verification and audit), `ignored` (objects that are passed over), `watch` (what is wrong), `status` (the status
as text), `metrics`. The ledger may have a hundred thousand entries and more, so nothing here lists it: lookups go from the last seal
backwards, or by a name or an hour straight to the entries. Must not know Airflow.
"""
