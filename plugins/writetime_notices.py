"""Tell people of failures, by Airflow's own notifiers that the pipeline's YAML names (`airflow.on_failure`).

Strategy: one callback on all tasks. It reads the YAML when there is something to tell, so that no secret is part of a DAG, puts what has
happened into the context as `told`, and calls each notifier, whose texts are templates over that context. One that fails does not keep the
others from being called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from airflow.sdk import BaseNotifier, Context
from airflow.sdk.exceptions import AirflowException
from writetime_page import link

from writetime.config.pipeline import NotifierConfig, PipelineConfig, load
from writetime.errors import ConfigError

TOLD_BEFORE: Final = "writetime_told_before"
"""Set in its context by a task that fails again for what its last run has failed for."""


class Notice:
    """What a task of the pipeline whose YAML is `config`, and which is shown at `page`, calls when it has failed for good."""

    def __init__(self, config: str, page: str = "") -> None:
        self.config = config
        self.page = page

    def __call__(self, context: Context) -> None:
        if context.get(TOLD_BEFORE):
            return
        config = load(self.config)
        errors = []
        for wanted in config.airflow.on_failure:
            try:
                notifier(wanted)({**context, "told": told(context, config, self.page)})
            except Exception as error:  # noqa: BLE001 - whatever a provider raises; all of it is raised below
                errors.append(f"{wanted.notifier}: {type(error).__name__}: {error}")
        if errors:
            raise AirflowException("not told to everybody. " + "; ".join(errors))


def told(context: Context, config: PipelineConfig, page: str = "") -> str:
    """What has failed, where, why and what to do next, as lines of text. Names and messages in it come from the ring: a notifier that sends
    HTML has to escape it (`{{ told | e }}`)."""
    task = context["ti"]
    label = context.get("segment") or context.get("table")
    what = f"{task.dag_id}.{task.task_id}" + (f" of {label}" if label else "")
    return (
        f"writetime, pipeline {config.pipeline}, ring {config.cluster.name}: {what} failed in run {task.run_id}\n"
        f"{context.get('exception') or 'Its process ended without a word: was it killed?'}\n"
        f"Log: {task.log_url}\nThe pipeline: {link(page)}\nWhat to do: the page of {task.dag_id} in Airflow has a runbook."
    )


def notifier(wanted: NotifierConfig) -> BaseNotifier:
    """The notifier that the configuration names. ConfigError if there is none such, or it does not take these arguments."""
    module, _, name = wanted.notifier.rpartition(".")
    secrets = {key: value.get_secret_value() for key, value in wanted.secrets.items()}
    try:
        made = getattr(import_module(module), name)(**wanted.options, **secrets)
    except (ImportError, AttributeError, TypeError) as error:
        # Only the names of arguments are in a TypeError of a call, never their values.
        raise ConfigError(f"cannot be used: {error}", operation="make a notifier", obj=wanted.notifier) from error
    if not isinstance(made, BaseNotifier):
        raise ConfigError("is no notifier", operation="make a notifier", obj=wanted.notifier, hint="Name a class made for that.")
    return made
