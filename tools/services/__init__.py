"""Real services without a container engine: each is a child process on loopback and is stopped by its pid.

    with Kafka(folder) as kafka, Airflow(folder, config=pipeline) as airflow:
        ...

A service that outlives its starter (`make up`) is detached; `<folder>/run/*.json` records what was started,
so that `make down` finds it.
"""
