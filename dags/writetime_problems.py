"""No DAG: an import error in Airflow for as long as a pipeline's YAML cannot be used, which says which one and why. The DAGs of the others
go on; a message in a log would be seen by nobody."""

from __future__ import annotations

from writetime_settings import tell_problems

tell_problems()
