"""Sends a pipeline's metrics to Airflow's back end: StatsD, Datadog or OpenTelemetry, as set in `[metrics]`.

The task that ends a checkpoint sends them, and so does one that fails. All are gauges, recomputed each time
(history/metrics.py), so a lost one is replaced by the next. A back end that is down, slow or broken harms no
checkpoint: an error is only written to the task's log.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.versions.airflow import conf, gauge

if TYPE_CHECKING:
    from tidegate.dag.tasks.task import Task
    from tidegate.history.metrics import Metric

__all__ = ["PREFIX", "emit", "send"]

log = logging.getLogger(__name__)

PREFIX = "tidegate"
_BACK_ENDS = ("statsd_on", "statsd_datadog_enabled", "otel_on")
_ODD = re.compile(r"[^A-Za-z0-9_-]")


def emit(task: Task) -> None:
    """Send all of the pipeline's metrics, if a back end is configured. Never raises."""
    try:
        if not any(conf.getboolean("metrics", name, fallback=False) for name in _BACK_ENDS):
            return
        from tidegate.history.metrics import figures, metrics

        ledger, options = task.coordinator.ledger, task.coordinator.place.options
        current = figures(ledger, task.settings, options, task.abandon_reason, seams.now())
        send(task.coordinator.graph.name, metrics(current), tags=_supports_tags())
    except Exception as error:
        log.warning("Could not send metrics: %r. The checkpoint is not affected; the next one sends them again", error)


def send(pipeline: str, metrics: Iterable[Metric], *, tags: bool) -> None:
    """Send metrics as `tidegate.lastCheckpointSize` with tags.

    If the back end drops tags, the pipeline's name goes into the path, so that two pipelines do not overwrite each
    other's: `tidegate.orders.lastCheckpointSize`.
    """
    for metric in metrics:
        if tags:
            gauge(f"{PREFIX}.{metric.name}", metric.value, tags={"pipeline": pipeline, **metric.labels})
        else:
            below = [_ODD.sub("_", value) for value in metric.labels.values()]
            gauge(".".join([PREFIX, pipeline, metric.name, *below]), metric.value)


def _supports_tags() -> bool:
    """Return whether the back end supports tags. Plain StatsD does not, and Airflow silently drops them."""
    plain = conf.getboolean("metrics", "statsd_on", fallback=False)
    tagged = conf.getboolean("metrics", "statsd_influxdb_enabled", fallback=False)
    return not plain or tagged or conf.getboolean("metrics", "statsd_datadog_enabled", fallback=False)
