"""Metrics in Prometheus' text format (0.0.4), for the endpoint and for `tidegate metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tidegate.history.metrics import METRICS, Metric

__all__ = ["CONTENT_TYPE", "PREFIX", "prometheus_text"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "tidegate_"


def prometheus_text(pipelines: Mapping[str, Iterable[Metric]]) -> str:
    """Return the metrics of several pipelines, by pipeline. All samples of a metric are together, as the format
    demands."""
    samples: dict[str, list[str]] = {}
    for pipeline, listed in pipelines.items():
        for metric in listed:
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in _labels(pipeline, metric).items())
            samples.setdefault(metric.name, []).append(f"{PREFIX}{metric.name}{{{labels}}} {_number(metric.value)}")
    lines = []
    for name, help in METRICS.items():
        if name in samples:
            lines += [f"# HELP {PREFIX}{name} {help}", f"# TYPE {PREFIX}{name} gauge", *samples[name]]
    return "".join(f"{line}\n" for line in lines)


def _labels(pipeline: str, metric: Metric) -> dict[str, str]:
    return {"pipeline": pipeline, **metric.labels}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value == int(value):
        return str(int(value))
    return repr(float(value))
