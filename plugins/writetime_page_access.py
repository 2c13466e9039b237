"""The page's access to Airflow: the user, their permissions, and triggering a run. Only Airflow's login and
permissions count.

Users who may see the DAG cdc_ingest may read the page, and with several pipelines each part of it by that
pipeline's DAG; users who may trigger a DAG may do so from the page.
Users who may trigger cdc_ingest also see values of quarantined data, unless airflow.cfg sets `[writetime]
previews = shapes`."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import bearer_scheme, get_user
from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.sdk.exceptions import AirflowException
from airflow.utils.types import DagRunTriggeredByType
from fastapi import FastAPI, HTTPException, Request
from writetime_page_app import INGEST, REPLAY, Shown, Started, build, build_all
from writetime_settings import dag_id, notifier_problems

from writetime.config.installation import SETTING, Pipeline, files, pipelines
from writetime.errors import ConfigError
from writetime.monitoring.health import Expected
from writetime.pipeline.batch_history import Batches
from writetime.storage import open_store

_NO_TEAM: Final = "-"
"""No team can be called this; only users who see the DAGs of all teams see those of this one."""


class AirflowAccess:
    """Implements `writetime_page_app.Access` with Airflow's API."""

    async def user(self, request: Request) -> Any:
        """The user by token or cookie; raises HTTPException 401 or 403."""
        return await get_user(request, None, await bearer_scheme(request))

    def may_read(self, user: Any, dag_id: str) -> bool:
        """Whether the user may see a DAG."""
        return get_auth_manager().is_authorized_dag(method="GET", details=_details(dag_id), user=user)

    def may_trigger(self, user: Any, dag_id: str) -> bool:
        """Whether the user may trigger a DAG."""
        manager = get_auth_manager()
        return manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, details=_details(dag_id), user=user)

    def trigger(self, user: Any, dag_id: str, settings: dict[str, str], note: str) -> Started:
        """Trigger a run; raises HTTPException 409 if Airflow refuses."""
        try:
            run = trigger_dag(
                dag_id, triggered_by=DagRunTriggeredByType.UI, triggering_user_name=user.get_name(), conf=dict(settings), note=note
            )
        except (AirflowException, ValueError) as error:
            raise HTTPException(409, f"Airflow did not start {dag_id}: {error}") from error
        if run is None:
            raise HTTPException(409, f"Airflow did not start {dag_id}")
        model = DagModel.get_current(dag_id)
        return Started(dag_id, run.run_id, paused=model is not None and bool(model.is_paused))

    def name(self, user: Any) -> str:
        """The user's name, as Airflow's audit log has it."""
        return str(user.get_name())

    @property
    def hosts(self) -> frozenset[str]:
        """Airflow's configured host name, in addition to the one in the request."""
        return frozenset({urlsplit(conf.get("api", "base_url", fallback="") or "").netloc} - {""})

    @property
    def shows_values(self) -> bool:
        """Whether values may be shown at all."""
        return conf.get("writetime", "previews", fallback="values") == "values"


class Pages:
    """The app of the pipelines in WRITETIME_CONFIG, created again when one of their files changes. Until then
    stores and batches stay open, since sealed batches do not change."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._stamp: tuple[tuple[Path, int], ...] | None = None
        self._app: FastAPI | None = None

    def app(self) -> FastAPI:
        """The app for one request."""
        with self._lock:
            stamp = tuple((path, _changed(path)) for path in files(os.environ.get(SETTING)))
            if self._app is None or stamp != self._stamp:
                self._app, self._stamp = _built(), stamp
            return self._app


def _built() -> FastAPI:
    known, access = pipelines(os.environ.get(SETTING)), AirflowAccess()
    if known.several:
        problems = [*known.problems, *(problem for pipeline in known.found for problem in notifier_problems(pipeline))]
        shown = [_shown(pipeline, several=True) for pipeline in known.found]
        return build_all(shown, problems, access, lambda name: dag_id(INGEST, name or None))
    if known.found:
        return build(_shown(known.found[0], several=False), access)
    return build(Shown("", _none, _none), access)


def _none() -> Any:
    hint = "Set it to the path of the pipeline's YAML, for the API server too."
    unset = ConfigError("is not set", operation="open the pipeline", obj=SETTING, hint=hint)
    raise next((problem.error for problem in pipelines(os.environ.get(SETTING)).problems), unset)


def _shown(pipeline: Pipeline, *, several: bool) -> Shown:
    @cache
    def batches() -> Batches:
        config = pipeline.config
        return Batches(open_store(config.bucket), config.cluster.name)

    name = pipeline.name if several else None
    return Shown(
        pipeline.name,
        batches,
        lambda: pipeline.config.columns.rules,
        dag_id(INGEST, name),
        dag_id(REPLAY, name),
        lambda: Expected.of(pipeline.config, str(pipeline.path)),
    )


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _details(dag_id: str) -> DagDetails:
    team = DagModel.get_team_name(dag_id)
    # A DAG that Airflow never had, since its pipeline's YAML never was valid, has no team yet. Airflow would take it as
    # one of all teams.
    unknown = team is None and conf.getboolean("core", "multi_team", fallback=False) and DagModel.get_dagmodel(dag_id) is None
    return DagDetails(id=dag_id, team_name=_NO_TEAM if unknown else team)
