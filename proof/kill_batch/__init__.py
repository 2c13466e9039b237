"""Ingest and publish, killed at every step: what consumers and the warehouse then hold. `make kill-batch`.

points      where a job may be killed, and how it is
child       the job as a process of its own
daemon      the same in Spark's Python workers
sabotage    rules of the product, each broken
run         batches, kills, a broker that goes away, and what came of it
"""
