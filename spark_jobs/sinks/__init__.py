"""What batches write to.

iceberg             current rows and changes, in Iceberg; `schema_evolution`, `table_maintenance`,
`unwritable_tables`, `voids` kafka               topics and transactions; `kafka_records` makes the records,
`schema_registry` registers their schemas avro_files          events as Avro files quarantine          what a
batch could not use
"""
