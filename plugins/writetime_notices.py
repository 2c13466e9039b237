"""Failure notifications through the Airflow notifiers that the pipeline's YAML lists (`airflow.on_failure`).

Strategy: one callback serves all tasks. It reads the YAML only when a task fails, so that no secret is part
of a DAG. It adds the failure text to the context as `told` and calls each notifier, whose texts are templates
over that context. If one notifier fails, the others are still called."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from airflow.sdk import BaseNotifier, Context
from airflow.sdk.exceptions import AirflowException
from writetime_page import link

from writetime.config.airflow import NotifierConfig
from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import ConfigError

NOTIFIED_BEFORE: Final = "writetime_notified_before"
"""Context key. A task sets it to True if its failure has been reported before."""


class Notice:
    """Failure callback of the tasks of one pipeline. `config`: path of its YAML; `page`: its path on the
    page."""

    def __init__(self, config: str, page: str = "") -> None:
        self.config = config
        self.page = page

    def __call__(self, context: Context) -> None:
        if context.get(NOTIFIED_BEFORE):
            return
        config = load(self.config)
        errors = []
        for wanted in config.airflow.on_failure:
            try:
                notifier(wanted)({**context, "told": failure_text(context, config, self.page)})
            except Exception as error:  # noqa: BLE001 - providers raise anything; all errors are raised below
                errors.append(f"{wanted.notifier}: {type(error).__name__}: {error}")
        if errors:
            raise AirflowException("notification failed: " + "; ".join(errors))


def failure_text(context: Context, config: PipelineConfig, page: str = "") -> str:
    """Lines of text: what failed, where, why and what to do next. They contain names and messages from the
    cluster: a notifier that sends HTML has to escape them (`{{ told | e }}`)."""
    task = context["ti"]
    label = context.get("segment") or context.get("table")
    what = f"{task.dag_id}.{task.task_id}" + (f" of {label}" if label else "")
    return (
        f"writetime, pipeline {config.pipeline}, cluster {config.cluster.name}: {what} failed in run {task.run_id}\n"
        f"{context.get('exception') or 'The process ended without an error message: was it killed?'}\n"
        f"Log: {task.log_url}\nPipeline: {link(page)}\nWhat to do: see the runbook on the page of {task.dag_id} in Airflow."
    )


def notifier(wanted: NotifierConfig) -> BaseNotifier:
    """The configured notifier. Raises ConfigError if it cannot be imported or does not accept these
    arguments."""
    module, _, name = wanted.notifier.rpartition(".")
    secrets = {key: value.get_secret_value() for key, value in wanted.secrets.items()}
    try:
        made = getattr(import_module(module), name)(**wanted.options, **secrets)
    except (ImportError, AttributeError, TypeError) as error:
        # A call's TypeError contains the names of arguments, never their values.
        raise ConfigError(f"cannot be used: {error}", operation="make a notifier", obj=wanted.notifier) from error
    if not isinstance(made, BaseNotifier):
        hint = "Name a subclass of BaseNotifier."
        raise ConfigError("is not an Airflow notifier", operation="make a notifier", obj=wanted.notifier, hint=hint)
    return made
