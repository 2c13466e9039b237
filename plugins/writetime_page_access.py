"""What the page needs of Airflow: who asks, what they may, and starting a run. Airflow's own login and permissions decide, nothing else.

Who may see the DAG cdc_ingest may read the page; who may trigger a DAG may do so from here. Who may trigger cdc_ingest also sees values of
what was quarantined, unless airflow.cfg says `[writetime] previews = shapes`.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.sdk.exceptions import AirflowException
from airflow.utils.types import DagRunTriggeredByType
from fastapi import HTTPException, Request
from writetime_page_app import INGEST, Started

from writetime.columns import Rules
from writetime.config import load
from writetime.errors import ConfigError
from writetime.status.batches import Batches
from writetime.store import open_store


class AirflowAccess:
    """Airflow's answers. See `writetime_page_app.Access`."""

    async def user(self, request: Request) -> Any:
        """Who asks, by token or cookie; HTTPException 401 or 403."""
        return await get_user(request, None, await bearer_scheme(request))

    def may_read(self, user: Any) -> bool:
        """Whether they may see the DAG that takes segments in."""
        return get_auth_manager().is_authorized_dag(method="GET", details=_details(INGEST), user=user)

    def may_trigger(self, user: Any, dag_id: str) -> bool:
        """Whether they may start runs of a DAG."""
        manager = get_auth_manager()
        return manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=_details(dag_id), user=user)

    def trigger(self, user: Any, dag_id: str, settings: dict[str, str], note: str) -> Started:
        """Start a run; HTTPException 409 if Airflow refuses."""
        try:
            run = trigger_dag(
                dag_id, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=user.get_name(), conf=dict(settings), note=note
            )
        except (AirflowException, ValueError) as error:
            raise HTTPException(409, f"Airflow does not start {dag_id}: {error}") from error
        if run is None:
            raise HTTPException(409, f"Airflow does not start {dag_id}")
        model = DagModel.get_current(dag_id)
        return Started(dag_id, run.run_id, paused=model is not None and bool(model.is_paused))

    @property
    def hosts(self) -> frozenset[str]:
        """What Airflow is served as, besides the name that a request gives."""
        return frozenset({urlsplit(conf.get("api", "base_url", fallback="") or "").netloc} - {""})

    @property
    def shows_values(self) -> bool:
        """Whether this Airflow shows values at all."""
        return conf.get("writetime", "previews", fallback="values") == "values"


class Pipeline:
    """The pipeline that WRITETIME_CONFIG names. Its batches are opened once, since what is sealed does not change."""

    def __init__(self) -> None:
        self._batches: Batches | None = None
        self._lock = Lock()

    def rules(self) -> Rules:
        """Which columns and rows are not to be seen, as the file says now. ConfigError if it cannot be read, or the salt lacks."""
        return load(_config()).columns.rules

    def batches(self) -> Batches:
        """ConfigError until there is a pipeline."""
        with self._lock:
            if self._batches is None:
                config = load(_config())
                self._batches = Batches(open_store(config.bucket), config.cluster.name)
            return self._batches


def _config() -> str:
    path = os.environ.get("WRITETIME_CONFIG")
    if not path:
        hint = "Let it name the pipeline's YAML: the API server needs it too."
        raise ConfigError("is not set", operation="open the pipeline", obj="WRITETIME_CONFIG", hint=hint)
    return path


def _details(dag_id: str) -> DagDetails:
    return DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
