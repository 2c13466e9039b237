"""The contract of `access_contract`, answered by Airflow. Runs in a process of its own."""

from __future__ import annotations

import asyncio

from fastapi import Request

from tests.plugins.access_contract import RIGHTS, behaviour, request
from tests.plugins.live_app import Server, report


def main() -> None:
    server = Server()
    logins = {user: server.log_in(user) for user in RIGHTS} | {"": {}, "forged": {"authorization": "Bearer no.such.token"}}

    def request_of(user: str) -> Request:
        return request(logins[user])

    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from writetime_page_access import AirflowAccess

    found = asyncio.run(behaviour(AirflowAccess(), request_of))
    with create_session() as session:
        runs = [(run.dag_id, run.conf, run.triggering_user_name, run.note, run.triggered_by.value) for run in session.query(DagRun)]
    report({"behaviour": found, "runs": runs})


if __name__ == "__main__":
    main()
