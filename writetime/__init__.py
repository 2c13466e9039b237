"""writetime: change data capture for Apache Cassandra.

The core package. It knows the commit log, the schema, the join, the names in the bucket and the
configuration. It must not know Airflow, Spark, Kafka or a network; the one door to the outside is
`writetime.storage.gcs`, imported only when a `gs://` URL is opened."""

__version__ = "0.2.0"
