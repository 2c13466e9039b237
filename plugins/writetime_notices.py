"""Failure notifications through the Airflow notifiers that the pipeline's YAML lists (`airflow.on_failure`).

Strategy: Airflow calls `Notice` in the process of the failed task, and `RunNotice` in the DAG processor when a
run has failed. A task whose process was killed has called nothing: `Notice` leaves a mark, an XCom, and
`RunNotice` reports the failed tasks without one. Both read the YAML only then, so that no secret is part of a
DAG, and add the failure text to the context as `told`, for the notifiers' templates. Notifiers are foreign
code: each runs in a thread of its own for a limited time, and whatever it raises is reported with its class and
hides nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from functools import partial
from importlib import import_module
from threading import Thread
from typing import Any, Final

from airflow.sdk import BaseNotifier, Context
from airflow.sdk.exceptions import AirflowException
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.sdk.execution_time.xcom import XCom
from airflow.sdk.log import mask_secret
from writetime_page import link

from writetime.config.airflow import NotifierConfig
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import ConfigError

NOTIFIED_BEFORE: Final = "writetime_notified_before"
"""Context key. A task sets it to True if its failure has been reported before."""
WHEN_NOTIFIED: Final = "writetime_when_notified"
"""Context key. A function that a task wants to be called once its failure has been reported."""
MARK: Final = "writetime_notified"
"""XCom of a task whose failure has been reported: its map index and the number of its try."""
SECONDS: Final = 12.0
"""How long notifiers may take. Airflow kills a task's process 20 s after the task (core.task_success_overtime)."""


class Notice:
    """Failure callback of the tasks of one pipeline. `config`: path of its YAML; `page`: its path on the
    page."""

    def __init__(self, config: str, page: str = "") -> None:
        self.config = config
        self.page = page

    def __call__(self, context: Context) -> None:
        if "exception" not in context:
            # Airflow calls this in the DAG processor for a process that was lost, where no mark can be left: `RunNotice` follows.
            return
        if context.get(NOTIFIED_BEFORE):
            _leave_mark(context)
            return
        config = load(self.config)
        errors = send(config, {**context, "told": failure_text(context, config, self.page)})
        try:
            if len(errors) < len(config.airflow.on_failure):
                when_notified: Any = context.get(WHEN_NOTIFIED, _nothing)
                when_notified()
                _leave_mark(context)
        finally:
            _raise(errors)


class RunNotice:
    """Failure callback of the runs of one pipeline: reports the failed tasks that have not done so, such as those
    whose process was killed. The arguments are those of `Notice`."""

    def __init__(self, config: str, page: str = "") -> None:
        self.config = config
        self.page = page

    def __call__(self, context: Context) -> None:
        if not hasattr(task_runner, "SUPERVISOR_COMMS"):
            # `airflow dags test` runs all tasks in one process: none can be killed alone, and Airflow cannot be asked.
            return
        if tasks := list(unreported_tasks(context)):
            config = load(self.config)
            about = {**context, "ti": tasks[-1], "task_instance": tasks[-1]}
            _raise(send(config, {**about, "told": unreported_text(tasks, config, self.page)}))


def _leave_mark(context: Context) -> None:
    task = context["ti"]
    task.xcom_push(key=MARK, value=[_index(task), task.try_number])


def _index(task: Any) -> int:
    return -1 if task.map_index is None else task.map_index


def _nothing() -> None:
    pass


def _raise(errors: Iterable[str]) -> None:
    if text := "; ".join(errors):
        raise AirflowException("notification failed: " + text)


def unreported_tasks(context: Context) -> Iterator[RuntimeTaskInstance]:
    """The failed tasks of a failed run that have not reported it, by name."""
    dag, run_id = context["dag"], context["run_id"]
    last: Any = context.get("ti")
    states = RuntimeTaskInstance.get_task_states(dag.dag_id, run_ids=[run_id]).get(run_id, {})
    failed = sorted(_parsed(name, dag.task_ids) for name, state in states.items() if state == "failed")
    marks = {task_id: _marks(dag.dag_id, run_id, task_id) for task_id in {task_id for task_id, _ in failed}}
    for task_id, index in failed:
        is_last = last is not None and (last.task_id, _index(last)) == (task_id, index)
        reported = marks[task_id].get(index)
        # The mark of an earlier try stays if a later one was killed before it began. Airflow says the number of one task only.
        if reported is None or (is_last and last.try_number != reported):
            yield last if is_last else _instance(dag, run_id, task_id, index)


def _parsed(name: str, task_ids: Iterable[str]) -> tuple[str, int]:
    """Task and map index of a name that Airflow gives to a state: `segment_0` is of the mapped task `segment`."""
    if name in task_ids:
        return name, -1
    task_id, _, index = name.rpartition("_")
    return (task_id, int(index)) if index.isdigit() else (name, -1)


def _marks(dag_id: str, run_id: str, task_id: str) -> dict[int, int]:
    """The number of the try that was reported, by map index."""
    return dict(XCom.get_all(key=MARK, dag_id=dag_id, run_id=run_id, task_id=task_id) or ())


def _instance(dag: Any, run_id: str, task_id: str, index: int) -> RuntimeTaskInstance:
    """What templates need of a task instance that Airflow has not given."""
    known = {"dag_id": dag.dag_id, "run_id": run_id, "task_id": task_id, "map_index": index, "try_number": 0}
    return RuntimeTaskInstance.model_construct(**known, task=dag.task_dict.get(task_id))


def failure_text(context: Context, config: PipelineConfig, page: str = "") -> str:
    """Lines of text: what failed, where, why and what to do next. They contain names and messages from the
    cluster: a notifier that sends HTML has to escape them (`{{ told | e }}`)."""
    task = context["ti"]
    label = context.get("segment") or context.get("table")
    what = f"{task.dag_id}.{task.task_id}" + (f" of {label}" if label else "")
    return (
        f"{_where(config)}: {what} failed in run {task.run_id}\n"
        f"{_message(context.get('exception')) or 'Airflow ended the task before it began: see its log.'}\n"
        f"Log: {task.log_url}\n{_advice(task.dag_id, page)}"
    )


def unreported_text(tasks: list[RuntimeTaskInstance], config: PipelineConfig, page: str = "") -> str:
    """The same about tasks of one run that have not reported their failure."""
    first = tasks[0]
    names = ", ".join(task.task_id + (f"[{_index(task)}]" if _index(task) >= 0 else "") for task in tasks)
    return (
        f"{_where(config)}: {first.dag_id}: {names} failed in run {first.run_id} without a notice\n"
        "The task's process was killed (out of memory, a worker that was stopped or lost) or never started, no notifier took its "
        "notice, or somebody has marked the task as failed. See the end of its log, and the log of the worker's system. Then clear "
        "the task.\n" + "".join(f"Log: {task.log_url}\n" for task in tasks) + _advice(first.dag_id, page)
    )


def _where(config: PipelineConfig) -> str:
    return f"writetime, pipeline {config.pipeline}, cluster {config.cluster.name}"


def _advice(dag_id: str, page: str) -> str:
    return f"Pipeline: {link(page)}\nWhat to do: see the runbook on the page of {dag_id} in Airflow."


def _message(error: Any) -> str:
    """An error's text. Those of the operators say what failed; of any other the class does, such as KeyError."""
    if error is None or isinstance(error, AirflowException):
        return str(error or "")
    return _described(error)


def _described(error: BaseException) -> str:
    """Class and text of any error, even of one that has no text."""
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - foreign code
        text = "its text cannot be read"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def send(config: PipelineConfig, context: dict[str, Any]) -> list[str]:
    """Call all notifiers: one after the other, but none waits long for another. Returns what went wrong, by key."""
    wanted = config.airflow.on_failure
    give_up, threads, errors = time.monotonic() + SECONDS, list[Thread](), dict[int, str]()
    for number, each in enumerate(wanted):
        threads.append(_started(each, context, partial(errors.__setitem__, number)))
        threads[-1].join(SECONDS / 2 / len(wanted))
    for number, thread in enumerate(threads):
        thread.join(max(0.0, give_up - time.monotonic()))
        if thread.is_alive():
            errors[number] = f"{wanted[number].notifier}: has not ended within {SECONDS:.0f} s"
    return [f"{key_of(number)}: {errors[number]}" for number in sorted(errors)]


def _started(wanted: NotifierConfig, context: dict[str, Any], failed: Callable[[str], None]) -> Thread:
    """The thread that calls a notifier; `failed` gets its error."""

    def call() -> None:
        try:
            # Rendering changes a context, and each notifier gets its own.
            notifier(wanted)({**context})
        except ConfigError as error:
            failed(str(error))
        except BaseException as error:  # noqa: BLE001 - a notifier raises anything, also SystemExit
            failed(_without_secrets(wanted, f"{wanted.notifier}: {_described(error)}"))

    thread = Thread(target=copy_context().run, args=(call,), name="notifier", daemon=True)
    thread.start()
    return thread


def key_of(number: int) -> str:
    """The key of a notifier in the YAML."""
    return f"airflow.on_failure.{number}"


def notifier(wanted: NotifierConfig) -> BaseNotifier:
    """The configured notifier. Raises ConfigError if it cannot be imported or does not accept these arguments, whatever it
    raises itself."""
    problem = ""
    try:
        made = _made(wanted)
        if isinstance(made, BaseNotifier):
            return made
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code, which may also exit; or Airflow's time-out of an import
        problem = _without_secrets(wanted, _described(error))
    # Not raised from the notifier's error, whose text may contain a secret.
    if problem:
        raise ConfigError(f"cannot be used: {problem}", operation="make a notifier", obj=wanted.notifier)
    hint = "Name a subclass of BaseNotifier."
    raise ConfigError("is not an Airflow notifier", operation="make a notifier", obj=wanted.notifier, hint=hint)


def _made(wanted: NotifierConfig) -> Any:
    secrets = {key: value.get_secret_value() for key, value in wanted.secrets.items()}
    for secret in secrets.values():
        # Notifiers, and Airflow for them, log errors themselves.
        mask_secret(secret)
    module, _, name = wanted.notifier.rpartition(".")
    return getattr(import_module(module), name)(**wanted.options, **secrets)


def _without_secrets(wanted: NotifierConfig, text: str) -> str:
    """Constructors that check their arguments like to quote them."""
    for secret in sorted((value.get_secret_value() for value in wanted.secrets.values()), key=len, reverse=True):
        text = text.replace(secret, "***") if secret else text
    return text
