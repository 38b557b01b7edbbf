"""Metrics through Airflow's own: a real StatsD listener, OpenTelemetry's own reader, and back ends that are broken.

That `complete` sends them is shown in test_dag.py, by a run.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger
from airflow.sdk._shared.observability.metrics.validators import PatternAllowListValidator
from airflow.sdk.observability import stats
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.dags.listener import Listener
from tests.kit.toy_world import ToyWorld
from tidegate.dag import metrics


@pytest.fixture
def task(tmp_path):
    """What a task that ends a checkpoint has."""
    world = ToyWorld(tmp_path)
    world.checkpoint("one", rows=3)
    settings = SimpleNamespace(tolerable_failed_checkpoints=0, root="s3://a", data="s3://a")
    return SimpleNamespace(coordinator=world.coordinator(), settings=settings, abandon_reason=lambda plan: None)


@pytest.fixture(autouse=True)
def nobody_listens():
    yield
    stats.initialize(factory=NoStatsLogger, export_legacy_names=False)


def test_plain_statsd_has_the_pipeline_in_the_path(task, monkeypatch):
    with Listener(monkeypatch) as listener:
        metrics.emit(task)
        heard = listener.heard()
    name = task.coordinator.graph.name
    assert heard[f"airflow.tidegate.{name}.numberOfCompletedCheckpoints"] == "1|g"
    assert heard[f"airflow.tidegate.{name}.lastCompletedCheckpointId"] == "1|g"
    assert heard[f"airflow.tidegate.{name}.numRecordsOut.a"] == "3|g"


def test_with_tags_the_name_is_the_same_for_all(task, monkeypatch):
    with Listener(monkeypatch, tags=True) as listener:
        metrics.emit(task)
        heard = listener.heard()
    name = task.coordinator.graph.name
    assert heard[f"airflow.tidegate.numRecordsOut,pipeline={name},sink=a"] == "3|g"


def test_opentelemetry_gets_attributes(task, monkeypatch):
    """Its names are without capitals."""
    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    back_end = SafeOtelLogger(provider, "airflow", PatternAllowListValidator())
    stats.initialize(factory=lambda: back_end, export_legacy_names=False)
    metrics.emit(task)
    found = {
        each.name: each.data.data_points
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for each in scope.metrics
    }
    name = task.coordinator.graph.name
    assert [(p.value, dict(p.attributes)) for p in found["airflow.tidegate.numrecordsout"]] == [
        (3, {"pipeline": name, "sink": sink}) for sink in ("a", "b")
    ]


@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_a_back_end_that_is_down_harms_nobody(task, monkeypatch, host):
    with Listener(monkeypatch) as listener:
        listener.close()
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", host)
        metrics.emit(task)


def test_what_breaks_is_a_line_in_the_log(task, monkeypatch, caplog):
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")

    def broken():
        raise RuntimeError("no back end")

    stats.initialize(factory=broken, export_legacy_names=False)
    with caplog.at_level(logging.WARNING):
        metrics.emit(task)
    assert "The checkpoint is not affected" in caplog.text


def test_nothing_is_read_if_nobody_listens(task, caplog):
    task.coordinator = None  # to read would fail, and say so
    metrics.emit(task)
    assert caplog.text == ""
