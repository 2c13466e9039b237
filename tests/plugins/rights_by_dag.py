"""An auth manager for tests: Airflow's own simple one, with rights for each DAG, as FAB and Keycloak have them. What a
user may do is in the environment, and not in the product."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from typing import Any

from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

from tests.plugins.live_app import RIGHTS


class RightsByDag(SimpleAuthManager):
    """`GET` is the right to see a DAG, `POST` that to trigger it."""

    def is_authorized_dag(
        self,
        *,
        method: ResourceMethod,
        user: SimpleAuthManagerUser,
        access_entity: DagAccessEntity | None = None,
        details: DagDetails | None = None,
    ) -> bool:
        given: dict[str, Any] = json.loads(os.environ[RIGHTS])[user.username]
        if method != "GET" and access_entity is not DagAccessEntity.RUN:
            return False
        patterns = given.get("GET" if method == "GET" else "POST", [])
        return bool(patterns) if details is None or details.id is None else any(fnmatchcase(details.id, each) for each in patterns)
