"""Rights by Airflow's teams: see test_access. Runs in a process of its own."""

from __future__ import annotations

import asyncio

from tests.plugins.access_contract import request
from tests.plugins.live_app import Server, report

KNOWN, UNKNOWN = "cdc_ingest__orders", "cdc_ingest__typo"


def main() -> None:
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    with create_session() as session:
        session.add_all([Team(name="shop"), Team(name="other")])
    server = Server()

    from writetime_page_access import AirflowAccess

    access = AirflowAccess()

    async def reads(user: str) -> list[bool]:
        found = await access.user(request(server.log_in(user)))
        return [access.may_read(found, dag) for dag in (KNOWN, UNKNOWN)]

    report({user: asyncio.run(reads(user)) for user in ("ann", "bob", "adam")})


if __name__ == "__main__":
    main()
