"""Change events: from rows to the records that consumers read.

    row_values      merged rows as typed values
    envelope        the event, in Debezium's shape
    converters      values for JSON and Avro; serialization   keys and values as bytes
    type_mapping    CQL types in Arrow, Iceberg, Avro and JSON: one table
    arrow, avro, json, values, arrow_columns   the conversions
    naming          names of keyspaces, tables and columns in other systems
    key_spelling    one spelling for each key, and keys that cannot be told apart
    masking         columns and rows that are excluded, hashed or masked

This room must not know the store, Kafka or Spark.
"""
