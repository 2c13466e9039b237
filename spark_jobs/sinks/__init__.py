"""What batches write to.

iceberg        current rows and changes; `schema_evolution`, `table_maintenance`, `voids`
spark_catalog  what it asks Spark for; `iceberg_table`: one table through Iceberg's API; `data_files` are written by tasks
kafka          topics and transactions; `kafka_records` encodes events, `schema_registry` registers schemas
avro_files     events as Avro files
quarantine     what a batch could not use"""
