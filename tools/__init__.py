"""Set-up of a working copy, and the real services that demo and tests use, all on loopback.

Nothing here is part of the installed package: a production pipeline uses its own Kafka, Airflow and Spark.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The working copy: the folder that holds the Makefile."""
