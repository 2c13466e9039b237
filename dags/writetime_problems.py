"""Not a DAG. Raises an import error while the YAML of a pipeline is invalid, so that Airflow's UI shows it; with
several pipelines the reasons are on writetime's page and in the log. The DAGs of other pipelines keep running."""

from __future__ import annotations

from writetime_settings import raise_problems

raise_problems()
