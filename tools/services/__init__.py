"""Real services without a container engine: each is started as a child of its own, on loopback, and stopped by its pid.

    with Kafka(folder) as kafka, Airflow(folder, config=pipeline) as airflow:
        ...

A service that shall outlive its starter (`make up`) is detached; what was started is noted in `<folder>/run/*.json`, from which
`make down` finds it again.
"""
