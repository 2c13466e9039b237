"""Stories: CQL that a user might run, on a real node, through shipper, ingest and publish to Kafka.

cases/*.cql   the stories; each has a keyspace of its own, named like the file
story.py      reads them
world.py      runs them
"""
