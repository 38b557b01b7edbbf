"""The dry run tells which results are computed in another way, by column, and what to declare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.shop import CODE, Shop
from tidegate.backfill.choosing import outlook
from tidegate.cli.targets import open_target
from tidegate.coordinator import Coordinator

TOTALS = """
from tidegate import Pipeline
from tidegate.sinks import DeltaUpsert
from tidegate.sources import Generator

pipeline = Pipeline("orders", tolerable_failed_checkpoints=2)
events = pipeline.source("events", Generator(rows=1))
totals = events.aggregate(by=["k"], uid="totals", v="max(v)", n="count(*)")
totals.sink("good", DeltaUpsert("tables/good", keys=["k"]))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    return tmp_path


def with_code(code: str, monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    Path("shop.py").write_text(code)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    target = open_target(CODE, {})
    assert target.pipeline is not None
    place = target.settings.place()
    return Coordinator(target.pipeline.graph(place), target.ledger, target.settings, place)


def test_a_changed_aggregate_is_named_with_its_column_and_the_tables_type(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Shop(project, TOTALS).checkpoint()
    changed = with_code(TOTALS.replace("max(v)", "max(concat(v, '!'))"), monkeypatch)
    (told,) = outlook(changed, 0)["changed_results"]
    assert told.startswith("column v of good: operator totals computes max(")
    assert "it computed max(v) before. The table has string" in told
    assert "declare CAST(v AS string) before the sink, or the run is refused" in told


def test_the_same_code_changes_no_result(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Shop(project, TOTALS).checkpoint()
    assert outlook(with_code(TOTALS, monkeypatch), 0)["changed_results"] == []


def test_an_output_of_another_type_is_told_what_to_declare(project: Path) -> None:
    shop = Shop(project)
    shop.checkpoint()
    sink: Any = shop.coordinator.graph.sinks["good"].sink
    context = shop.coordinator.context("good")
    fields = [{"name": "k", "type": "decimal(25,3)"}, {"name": "v", "type": "string"}]
    output = {"type": "struct", "fields": [{**each, "nullable": True, "metadata": {}} for each in fields]}
    with pytest.raises(Exception, match="does not fit") as refused:
        sink.fitting(output, context, sink.open(context))
    help: str = getattr(refused.value, "help", "")
    assert help.startswith("cast to the table's types in the last stage before the sink: CAST(k AS bigint)")
