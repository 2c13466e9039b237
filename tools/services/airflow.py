"""Airflow from the project's own environment: SQLite, LocalExecutor, four processes, everything on loopback.

Strategy: AIRFLOW_HOME is a folder with a generated airflow.cfg (readable by its owner only), so that
`airflow` on a shell uses the same settings as the four processes. Secrets, including the admin's password,
are random and stay in that folder. The schema of a new database is copied from a template that is migrated
once per Airflow version. api-server, dag-processor, scheduler and triggerer are started separately, because
`airflow standalone` would bind its log servers to all addresses. Knows the environment that the DAGs need,
not what they do.
"""

from __future__ import annotations

import configparser
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from tools import ROOT
from tools.console import say
from tools.errors import ServiceError
from tools.java import java_home
from tools.services import ports, process
from tools.services.airflow_api import AirflowApi

PORT = 8080
USER = "admin"
TEMPLATES = ROOT / "var" / "cache"
COMMANDS = {
    "api-server": ("api-server", "--host", ports.LOOPBACK),
    "dag-processor": ("dag-processor",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}


class Airflow:
    """An Airflow that keeps everything in `folder` (its AIRFLOW_HOME).

    `config` is the pipeline's YAML, which DAGs and jobs find in WRITETIME_CONFIG; `env` adds to the
    environment of all processes; `path` is that of the UI, as behind a proxy (`/airflow`).
    `with Airflow(…) as airflow:` starts and stops it; `airflow.api` is a client, `airflow.url` the UI.
    """

    def __init__(
        self,
        folder: Path,
        *,
        config: Path | None = None,
        env: Mapping[str, str] | None = None,
        port: int = PORT,
        dags: Path = ROOT / "dags",
        plugins: Path = ROOT / "plugins",
        run: Path | None = None,
        spark_master: str = "local[2]",
        path: str = "",
    ) -> None:
        self.path = path
        self.home = folder.resolve()
        self.run = run or self.home / "run"
        self.port = 0
        self.services: list[process.Service] = []
        self._config = config
        self._env = dict(env or {})
        self._preferred = port
        self._dags = dags
        self._plugins = plugins
        self._spark_master = spark_master

    @property
    def url(self) -> str:
        """URL of the UI."""
        return f"http://{ports.LOOPBACK}:{self.port}{self.path}"

    @property
    def password(self) -> str:
        """The admin's password; generated at the first start in this folder."""
        return str(json.loads(_passwords_file(self.home).read_text(encoding="utf-8"))[USER])

    @property
    def api(self) -> AirflowApi:
        """A client of the REST API, logged in as admin."""
        return AirflowApi(self.port, USER, self.password, self.path)

    def environment(self) -> dict[str, str]:
        """The environment of Airflow's processes and of the Spark jobs they start."""
        return _inherited() | self._own_environment()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `airflow <arguments>`, such as `backfill create …`; the caller checks the exit code."""
        env = _inherited() | self._patient_environment()
        return subprocess.run([_program(), *arguments], env=env, cwd=self.home, capture_output=True, text=True, check=False)

    def start(self, *, expect: Iterable[str] = (), seconds: float = 180.0) -> Self:
        """Start all four processes and wait until they are healthy and the DAGs in `expect` are loaded.

        ServiceError with the reason if a process dies, a DAG file cannot be loaded, or it takes longer than
        `seconds`.
        """
        for name in COMMANDS:
            process.refuse_second(f"airflow-{name}", run=self.run)
        self.port = ports.choose(self._preferred, "Airflow")
        self.home.mkdir(parents=True, exist_ok=True)
        self._write_settings()
        _prepare_database(self.home, self.environment())
        try:
            for name, command in COMMANDS.items():
                self.services.append(self._start_one(name, command))
            took = self.services[0].wait(self._is_ready(frozenset(expect)), seconds=seconds)
        except BaseException:
            self.stop()
            raise
        say(f"✓ Airflow on {self.url}: {took:.1f} s")
        return self

    def stop(self) -> None:
        """Stop all running processes."""
        services, self.services = self.services, []
        process.stop_all(services, notify=lambda _: None)

    def restart(self, name: str, *, seconds: float = 180.0) -> None:
        """Stop one of the four processes with all that it has started, as a service manager does, and start it again."""
        place = list(COMMANDS).index(name)
        self.services[place].stop()
        self.services[place] = self._start_one(name, COMMANDS[name])
        self.services[place].wait(self._is_ready(frozenset()), seconds=seconds)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _start_one(self, name: str, command: tuple[str, ...]) -> process.Service:
        serves = name == "api-server"
        return process.start(
            f"airflow-{name}",
            [_program(), *command, *(("--port", str(self.port)) if serves else ())],
            run=self.run,
            log=self.home / "logs" / f"{name}.log",
            env=self.environment() if serves else _inherited() | self._patient_environment(),
            cwd=self.home,
            detail=self.url if serves else "",
        )

    def _is_ready(self, expected: frozenset[str]) -> Callable[[], bool]:
        api = self.api

        def ready() -> bool:
            self._all_alive()
            try:
                if not _healthy(api.health()):
                    return False
                missing = expected - {dag["dag_id"] for dag in api.dags()}
                if missing and (problems := api.import_errors()):
                    text = "\n".join(f"{problem['filename']}: {problem['stack_trace']}" for problem in problems)
                    raise _CannotLoad(f"DAG files cannot be loaded:\n{text}")
            except _CannotLoad:
                raise
            except ServiceError:  # not listening yet
                return False
            return not missing

        return ready

    def _all_alive(self) -> None:
        for service in self.services:
            if not service.alive:
                raise ServiceError(f"{service.name} ended while starting. The end of {service.log}:\n{service.tail()}")

    def _own_environment(self) -> dict[str, str]:
        binaries = str(Path(sys.executable).parent)
        connection = {"conn_type": "spark", "host": self._spark_master, "extra": {"deploy-mode": "client"}}
        own = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW_CONN_SPARK_WRITETIME": json.dumps(connection),
            "PATH": os.pathsep.join([binaries, os.environ.get("PATH", os.defpath)]),
            "JAVA_HOME": str(java_home()),
            "PYTHONPATH": str(ROOT),
            # Workers must use the driver's interpreter: the same libraries, the same compiled kernel.
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": ports.LOOPBACK,
            "SPARK_CONF_DIR": str(self.home / "spark"),
        }
        if self._config is not None:
            own["WRITETIME_CONFIG"] = str(self._config.resolve())
        return own | self._env

    def _patient_environment(self) -> dict[str, str]:
        """The environment of processes that may wait for SQLite's single writer: a shell, and all except the
        API server.
        """
        return self._own_environment() | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": _database(self.home, patience=60)}

    def _write_settings(self) -> None:
        """airflow.cfg, the password file, and env.sh for a person's shell; none of them readable by
        others."""
        settings = _settings(self.home, self.url, self.port, self._dags.resolve(), self._plugins.resolve(), _secrets(self.home))
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_dict({section: {key: value.replace("%", "%%") for key, value in part.items()} for section, part in settings.items()})
        with _private(self.home / "airflow.cfg") as file:
            parser.write(file)
        if not _passwords_file(self.home).exists():
            with _private(_passwords_file(self.home)) as file:
                json.dump({USER: secrets.token_urlsafe(12)}, file)
        (self.home / "config").mkdir(exist_ok=True)
        (self.home / "config" / "airflow_local_settings.py").write_text(_LOCAL_SETTINGS, encoding="utf-8")
        (self.home / "spark").mkdir(exist_ok=True)
        (self.home / "spark" / "spark-defaults.conf").write_text(_SPARK_DEFAULTS, encoding="utf-8")
        with _private(self.home / "env.sh") as file:
            file.writelines(f"export {key}={shlex.quote(value)}\n" for key, value in self._patient_environment().items())


# Options of spark-submit for this machine; the operators set those of the jobs.
_SPARK_DEFAULTS = "spark.driver.memory 1g\nspark.ui.enabled false\n"


# Runs first in every Airflow process. A savepoint begins a read transaction in SQLite; if another process has
# written since, a write in it fails with "database is locked" at once, regardless of the time-out. `airflow
# backfill create` does that. So the transaction is begun as a write transaction.
_LOCAL_SETTINGS = """\
from sqlalchemy import event
from sqlalchemy.engine import Engine

__all__ = []


@event.listens_for(Engine, "savepoint")
def begin_as_a_writer(connection, name):
    if connection.dialect.name == "sqlite" and not connection.connection.dbapi_connection.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
"""


class _CannotLoad(ServiceError):
    pass


def _settings(home: Path, url: str, port: int, dags: Path, plugins: Path, secret: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Sections of airflow.cfg; all other settings are Airflow's defaults."""
    return {
        "core": {
            "dags_folder": str(dags),
            "plugins_folder": str(plugins),
            "load_examples": "False",
            "executor": "LocalExecutor",
            "parallelism": "4",
            "fernet_key": secret["fernet_key"],
            "execution_api_server_url": f"{url}/execution/",
            "simple_auth_manager_users": f"{USER}:admin",
            "simple_auth_manager_passwords_file": str(_passwords_file(home)),
            "min_serialized_dag_update_interval": "5",
        },
        # SQLite has one writer. Two requests in the API server can block each other, one waiting for the
        # lock, the other for the event loop that the first one blocks: a short time-out resolves that, and
        # clients retry. The scheduler and the DAG processor do not retry but exit: all other processes wait
        # long.
        "database": {"sql_alchemy_conn": _database(home, patience=3)},
        "api": {"host": ports.LOOPBACK, "port": str(port), "workers": "1", "base_url": url, "secret_key": secret["api_secret_key"]},
        "api_auth": {"jwt_secret": secret["jwt_secret"]},
        "dag_processor": {
            "refresh_interval": "5",
            "bundle_refresh_check_interval": "2",
            "parsing_processes": "1",
        },
        "scheduler": {"scheduler_heartbeat_sec": "2"},
        "logging": {"base_log_folder": str(home / "logs"), "colored_console_log": "False"},
    }


def _database(home: Path, *, patience: int) -> str:
    """The URL of Airflow's database; a client waits up to `patience` seconds for its lock."""
    return f"sqlite:///{home / 'airflow.db'}?timeout={patience}"


def _inherited() -> dict[str, str]:
    """The environment of this process without settings of the user's own Airflow, which would override
    ours."""
    return {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW_")}


def _secrets(home: Path) -> dict[str, str]:
    """Keys that all processes of this Airflow share; generated once."""
    path = home / "secrets.json"
    if not path.exists():
        with _private(path) as file:
            json.dump(
                {
                    "fernet_key": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                    "api_secret_key": secrets.token_hex(32),
                    "jwt_secret": secrets.token_hex(32),
                },
                file,
            )
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _prepare_database(home: Path, env: Mapping[str, str]) -> None:
    """Create the database of a new Airflow, or migrate that of another Airflow version."""
    stamp, database = home / "airflow.db.version", home / "airflow.db"
    current = version("apache-airflow-core")
    if database.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == current:
        return
    if database.exists():
        say(f"  migrating Airflow's database to version {current}")
        _migrate(env)
    else:
        shutil.copyfile(template_database(), database)
    stamp.write_text(current, encoding="utf-8")


def template_database(cache: Path = TEMPLATES) -> Path:
    """An empty database with the schema of the installed Airflow; created at the first call, which takes
    about ten seconds.
    """
    template = cache / f"airflow-{version('apache-airflow-core')}.db"
    if not template.exists():
        say("  creating Airflow's database (once per version)")
        home = cache / f"airflow-home.{os.getpid()}"
        home.mkdir(parents=True)
        try:
            _migrate(_inherited() | {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"})
            (home / "airflow.db").rename(template)  # in one go, should two make it at once
        finally:
            shutil.rmtree(home)
    return template


def _migrate(env: Mapping[str, str]) -> None:
    done = subprocess.run([_program(), "db", "migrate"], env=dict(env), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceError(f"Failed to migrate Airflow's database:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def _healthy(health: Mapping[str, Mapping[str, str]]) -> bool:
    return all(health.get(part, {}).get("status") == "healthy" for part in ("metadatabase", "scheduler", "dag_processor", "triggerer"))


def _program() -> str:
    """The `airflow` of the current interpreter."""
    program = Path(sys.executable).parent / "airflow"
    if not program.exists():
        raise ServiceError(f"Airflow is not installed next to {sys.executable}. Install it: make setup")
    return str(program)


def _passwords_file(home: Path) -> Path:
    return home / "passwords.json"


def _private(path: Path) -> TextIO:
    """Open a file for writing that only its owner can read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8")


if __name__ == "__main__":
    template_database()
