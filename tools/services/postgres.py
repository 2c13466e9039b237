"""A PostgreSQL server for tests, on loopback and in a folder of its own; Debian's package is installed if
there is none.

Strategy: the server refuses to run as root, so root starts it as another user, and its folder is directly
below /tmp: a test's own folder may be closed to that user. It trusts whoever connects, and nothing of it is
left when it stops.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

from tools import debian
from tools.errors import MissingPrerequisite, ServiceError
from tools.services import ports, process
from tools.services.server import Server

USER = "shop"
DATABASE = "postgres"


def programs() -> Path | None:
    """Folder of `postgres` and `initdb`, None if PostgreSQL is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


def need() -> Path:
    """The same; installs PostgreSQL if it is missing and that is allowed."""
    if (found := programs()) is None:
        debian.install(["postgresql"], "Install PostgreSQL, and run this again.")
        found = programs()
    if found is None:
        raise MissingPrerequisite("PostgreSQL was installed, but initdb is neither on the PATH nor in /usr/lib/postgresql/*/bin.")
    return found


class Postgres(Server):
    """`with Postgres() as postgres:` starts and stops it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder: Path | None = None

    @property
    def url(self) -> str:
        """For JDBC."""
        return f"jdbc:postgresql://{ports.LOOPBACK}:{self.port}/{DATABASE}"

    def start(self) -> Self:
        bin = need()
        folder = self.folder = Path(tempfile.mkdtemp(prefix="writetime-postgres-"))
        prefix = _as_other_user(folder)
        data = folder / "data"
        made = subprocess.run(
            [*prefix, str(bin / "initdb"), "-D", str(data), "-U", USER, "--auth=trust", "--encoding=UTF8", "--no-sync"],
            capture_output=True, text=True, check=False, cwd=folder,
        )  # fmt: skip
        if made.returncode != 0:
            raise ServiceError(f"initdb failed in {data}:\n{made.stdout}{made.stderr}")
        self.port = ports.any_free()
        command = [*prefix, str(bin / "postgres"), "-D", str(data), "-p", str(self.port), "-k", str(folder), "-c", "fsync=off"]
        service = process.start(
            "postgres", [*command, "-c", f"listen_addresses={ports.LOOPBACK}"],
            run=folder / "run", log=folder / "postgres.log", cwd=folder, detail=self.url,
        )  # fmt: skip
        return self._ready(service, self._answers, "PostgreSQL", seconds=60)

    def stop(self) -> None:
        """Stop it, if it is running, and remove its folder."""
        super().stop()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table, as PostgreSQL's own JSON."""
        return [json.loads(line) for line in self.sql(f'SELECT row_to_json(t) FROM "{table}" t').splitlines()]  # noqa: S608 - a test's own name

    def types(self, table: str) -> dict[str, str]:
        """PostgreSQL's type of each column of a table."""
        found = self.sql(f"SELECT column_name, udt_name FROM information_schema.columns WHERE table_name = '{table}'")  # noqa: S608
        return dict(line.split("|", 1) for line in found.splitlines())

    def sql(self, statement: str) -> str:
        """What psql prints of a statement, unaligned."""
        command = [str(need() / "psql"), "-h", ports.LOOPBACK, "-p", str(self.port), "-U", USER, "-d", DATABASE, "-XAtq", "-c", statement]
        done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
        if done.returncode != 0:
            raise ServiceError(f"psql failed at `{statement}`: {done.stderr}")
        return done.stdout

    def _answers(self) -> bool:
        # While it starts up, it accepts connections and rejects statements.
        try:
            return self.sql("SELECT 1").strip() == "1"
        except ServiceError:
            return False


def _as_other_user(folder: Path) -> list[str]:
    """How root starts a program as another user, who then owns the folder; nothing for any other user."""
    if os.geteuid() != 0:
        return []
    names = {each.pw_name: each for each in pwd.getpwall()}
    user = names.get("postgres") or names["nobody"]
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
