"""Ingest and publish, killed at every step, and the resulting tables and topics. `make kill-batch`.

points      the points at which a job is killed
child       the job as a separate process
daemon      the daemon of Spark's Python workers, with points
sabotage    rules of the product, each broken
run         batches, kills, broker outages, and the comparison
"""
