"""What the bucket tells of a pipeline, for people: the commands `writetime status` and the page in Airflow show it.

One module a question: `batches` (what each sealed batch took in and gave out), `nodes` (who ships, and how fresh), `ledger` (what became of
a segment), `tables` (what came of each table), `quarantine` (what could not be used). All of it reads, nothing writes. The ledger may have
a hundred thousand entries and more, so nothing here lists it: the way leads from the last seal backwards, or by a name or an hour straight
to what is asked for, and only the entries that are shown are read. Knows no Airflow, and no way to draw.
"""
