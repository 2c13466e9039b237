"""The schema of a cluster, learned from its commit logs.

model              keyspaces, tables, columns and types as plain values
system_tables      built-in definitions of the tables in `system_schema` and `system`
history            learns the schema, past versions included, from mutations of `system_schema`
timeline           the schema at a position of a log
snapshot           `system_schema` as a node returned it over CQL
node_metadata      what a node logs about itself and its peers
ddl, create_statements   the difference of two schemas, and a whole schema, as CQL
fingerprint        the schema version: a digest of a table's shape
"""
