"""The schema as the log teaches it.

model              keyspaces, tables, columns and types as plain values
system_tables      the tables of `system_schema` and `system`, hard-coded
history            learning from mutations of `system_schema`: every version of the schema, and when it came
timeline           the schema in force at a position of a log
snapshot           `system_schema` as a node answered it over CQL
node_metadata      what a node logs about itself and its peers
ddl, create_statements   a difference of schemas, and a whole schema, as CQL
fingerprint        the digest of a table's shape
"""
