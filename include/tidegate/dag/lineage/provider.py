"""Our side of OpenLineage's provider for Airflow: it asks operators for their datasets, and sends events by itself.

The provider is optional. While it sends an event, the task waits for it, up to 10 s if the collector does not answer:
before the task's work for the event of its start, and for the others after Airflow has been told how the task ended. So
a task of ours has its start sent late, when nobody waits for it any more, with the time at which it began.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidegate.errors import name_of

if TYPE_CHECKING:
    from tidegate.dag.lineage.facts import TaskDatasets

__all__ = ["describe", "is_enabled", "looked_up", "postpone_start", "send_postponed_start"]

log = logging.getLogger(__name__)

POSTPONED = "lineage_params"
"""The attribute of a task whose start is yet to be sent: its own params."""


def is_enabled() -> bool:
    """Return whether the provider is installed, and has somewhere to send events to."""
    try:
        from airflow.providers.openlineage import conf
    except (ImportError, RuntimeError):  # RuntimeError: it is not for this version of Airflow
        return False
    return not conf.is_disabled()


def looked_up(look_up: Callable[[], TaskDatasets]) -> TaskDatasets | None:
    """Return what there is to send, or None if nobody wants it or it cannot be found out. Never raises.

    It is looked up in the task's own process: the provider asks for it in a forked one, where clients of object stores
    do not work.
    """
    if not is_enabled():
        return None
    try:
        return look_up()
    except Exception as error:
        log.warning("OpenLineage gets no datasets of this task: %s", name_of(error))
        return None


def describe(lineage: TaskDatasets | None) -> Any:
    """Return the same in the provider's classes."""
    if lineage is None:
        return None
    from tidegate.dag.lineage.facets import operator_lineage

    return operator_lineage(lineage)


def postpone_start(task: Any) -> None:
    """Keep the provider from sending the start of a task that is about to run."""
    if not is_enabled():
        return
    try:
        from airflow.providers.openlineage.api.emission_policy import extend_global_openlineage_emission_policy
    except ImportError:  # before 2.19
        return
    setattr(task, POSTPONED, task.params)
    task.params = copy.copy(task.params)
    extend_global_openlineage_emission_policy(task, emit_task_events=False)
    log.info("OpenLineage's event of this task's start is sent when it ends: until then nobody has to wait for it")


def send_postponed_start(task_instance: Any) -> None:
    """Have the provider send the start of a task that has ended. What it sends next is the end."""
    task = getattr(task_instance, "task", None)
    params = getattr(task, POSTPONED, None)
    if task is None or params is None:
        return
    delattr(task, POSTPONED)
    task.params = params
    from airflow.providers.openlineage.plugins.listener import get_openlineage_listener
    from airflow.utils.state import TaskInstanceState

    get_openlineage_listener().on_task_instance_running(TaskInstanceState.QUEUED, task_instance)
