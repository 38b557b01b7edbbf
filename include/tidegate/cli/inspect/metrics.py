"""`tidegate metrics`: a pipeline's metrics, in Prometheus' text format or as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tidegate import seams
from tidegate.cli.output import Output, error_document
from tidegate.cli.targets import Target, open_target, pipeline_names
from tidegate.config import load_settings
from tidegate.errors import TidegateError, reported_error
from tidegate.execution.runs import abandoned_reason
from tidegate.history.metrics import METRICS, Metric, figures, metrics
from tidegate.history.prometheus import prometheus_text

__all__ = ["add_parser", "run"]

CANNOT = 3
GRAFANA = Path(__file__).with_name("grafana.json")
ALERTS = Path(__file__).with_name("alerts.yml")


def add_parser(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "metrics",
        help="the metrics for monitoring, in Prometheus' text format",
        description="Print the current metrics, which Airflow sends to StatsD or OpenTelemetry, in Prometheus' text "
        "format, for example for node_exporter's textfile collector, or as JSON. Names and units are Flink's where "
        "Flink has them. Without a pipeline: those of all.",
        epilog="examples:\n  tidegate metrics orders\n  tidegate metrics > /var/lib/node_exporter/tidegate.prom\n"
        "  tidegate metrics orders --json\n  tidegate metrics --grafana > dashboard.json\n"
        "  tidegate metrics --alerts > alerts.yml",
    )
    parser.add_argument("pipeline", nargs="?", metavar="PIPELINE", help="a name, or MODULE:pipeline; by default all")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--grafana", action="store_true", help="instead, a dashboard for Grafana's import")
    instead.add_argument("--alerts", action="store_true", help="instead, alerting rules for Prometheus")


def run(args: argparse.Namespace, out: Output) -> int:
    """Print the metrics, the dashboard, or the rules."""
    if args.grafana:
        text = GRAFANA.read_text(encoding="utf-8")
        out.document(json.loads(text))
        if not out.json:
            print(text, end="", file=out.out)
        return 0
    if args.alerts:
        rules = ALERTS.read_text(encoding="utf-8")
        out.document({"rules": rules})
        if not out.json:
            print(rules, end="", file=out.out)
        return 0
    if args.pipeline is not None:
        target = open_target(args.pipeline, args.settings)
        return _print({target.name: _metrics(target)}, {}, out)
    metrics_by_name, failed = {}, {}
    for name in pipeline_names(load_settings(args.settings)):
        try:
            metrics_by_name[name] = _metrics(open_target(name, args.settings))
        except Exception as error:  # a pipeline that cannot be read must not hide the rest
            metrics_by_name[name] = [Metric("readable", 0)]
            failed[name] = reported_error(error, f"`tidegate metrics {name} --debug` shows the whole traceback")
    return _print(metrics_by_name, failed, out)


def _print(metrics_by_name: dict[str, list[Metric]], failed: dict[str, TidegateError], out: Output) -> int:
    pipelines = {}
    for name, listed in metrics_by_name.items():
        pipelines[name] = [_plain(metric) for metric in listed]
    out.document({"pipelines": pipelines, "failed": {name: error_document(error) for name, error in failed.items()}})
    if not out.json:
        print(prometheus_text(metrics_by_name), end="", file=out.out)
    for error in failed.values():
        out.problem(str(error))
    return CANNOT if failed else 0


def _metrics(target: Target) -> list[Metric]:
    options = target.settings.storage_options
    return metrics(figures(target.ledger, target.settings, options, abandoned_reason, seams.now()))


def _plain(metric: Metric) -> dict[str, Any]:
    return {"name": metric.name, "labels": metric.labels, "value": metric.value, "help": METRICS[metric.name]}
