"""Configuration: one YAML per pipeline (`pipeline`), and the pipelines of an Airflow (`airflow`)."""
