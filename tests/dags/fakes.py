"""What the tests of this folder put in the place of Airflow's run-time objects, where a task is looked at without being
run. `ANSWERS` lists what they answer; test_fakes has the same asked of the live SDK, in a task that runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

MOMENT = datetime(2026, 5, 4, 12, tzinfo=UTC)
PAUSED, UNPAUSED = "paused_dag", "unpaused_dag"
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "whether another DAG is paused": lambda context: [context["ti"].get_dag(dag_id).is_paused for dag_id in (PAUSED, UNPAUSED)],
    "the first try": lambda context: context["ti"].try_number,
    "no reschedule yet": lambda context: context["ti"].get_first_reschedule_date(context),
    "an XCom of a task": lambda context: context["ti"].xcom_pull(task_ids="plan"),
    "no XCom of a task without one": lambda context: context["ti"].xcom_pull(task_ids="probe"),
    "the time of a run": lambda context: context["dag_run"].run_after.isoformat(),
    "the type of a run": lambda context: [context["dag_run"].run_type == kind for kind in ("manual", "scheduled")],
    "the interval": lambda context: [context[f"data_interval_{end}"].isoformat() for end in ("start", "end")],
    "params": lambda context: dict(context["params"]),
    "keys of the task's own": lambda context: [context.setdefault("segment", "x"), context.get("segment")],
}


def instance(paused: bool = False) -> Any:
    """A task instance in its first try; `paused`: DAGs of which it asks, but for one that is known not to be."""
    pulled = {"plan": 7}
    return SimpleNamespace(
        get_dag=lambda dag_id: SimpleNamespace(is_paused=paused and dag_id != UNPAUSED),
        try_number=1,
        get_first_reschedule_date=lambda context: None,
        xcom_pull=lambda task_ids: pulled.get(task_ids),
    )


def context(**params: Any) -> dict[str, Any]:
    """The context of a task in a run that somebody has triggered for an hour."""
    return {
        "ti": instance(paused=True),
        "dag_run": SimpleNamespace(run_after=MOMENT.replace(hour=13), run_type="manual"),
        "params": params,
        "data_interval_start": MOMENT,
        "data_interval_end": MOMENT.replace(hour=13),
    }
