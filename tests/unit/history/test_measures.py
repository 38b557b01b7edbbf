"""A measure is declared once, and everything that shows measures shows it; rows stay readable, whoever wrote them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec

import tidegate
from tidegate.history.details import CheckpointDetails
from tidegate.history.query import CheckpointHistory
from tidegate.history.row import MEASURES, CheckpointRow
from tidegate.history.table import live_row, remember, rows_table
from tidegate.records.typed import document_of

PACKAGE = Path(tidegate.__file__).parent
ROW = PACKAGE / "history/row.py"

DERIVED = ("align_seconds", "process_seconds", "stage_seconds", "async_seconds")
"""Measures that nothing treats in a way of its own: each stands for the next one that somebody adds."""


def test_no_renderer_names_a_measure_that_it_does_not_treat_specially():
    """So a new one is added in history/row.py, and where it is measured (CONTRIBUTING.md)."""
    for name in DERIVED:
        assert name in MEASURES
        users = {
            path.relative_to(PACKAGE).as_posix()
            for path in PACKAGE.rglob("*.*")
            if path.suffix in (".py", ".js") and re.search(rf"\b{name}\b", path.read_text(encoding="utf-8"))
        }
        assert users == {"history/row.py"}, name


def test_every_figure_that_is_stored_is_declared_or_is_known_to_be_none():
    figures = {name for name, hint in CheckpointRow.__annotations__.items() if "Measure" in str(hint)}
    assert figures == set(MEASURES)
    metrics = [measure.metric for measure in MEASURES.values() if measure.metric]
    assert len(metrics) == len(set(metrics))


def test_the_pages_get_the_declaration():
    from tidegate.ui.pages import _files

    script = _files().content["measures.js"].decode()
    for name, measure in MEASURES.items():
        assert f'"{name}"' in script
        assert measure.help in script
    plotted = json.loads(script.partition("PLOTTED = ")[2].partition(";\n")[0])
    assert plotted == [name for name, measure in MEASURES.items() if measure.plotted]


# -- what is stored ----------------------------------------------------------------------------------------

OLD = (
    '{"reason":"JOB_FAILED","detail":"boom","counts":true,"control":null,"restart":null,"drain":null,'
    '"sources":{"in":{"kind":"files","summary":"2 files","empty":false,"more":true,"pace":{"unit":"bytes",'
    '"at_most":900,"taken":800,"target_s":48.0,"fixed_s":0.0,"why":"at most 900 bytes"},"start":null,"end":{"n":1}}},'
    '"jobs":{"main":{"attempt":"a-1","started":"2026-03-01T10:00:01+00:00","acked":"2026-03-01T10:00:05+00:00",'
    '"delay":1.0,"seconds":{"read":0.5},"taken":{"in":{"rows":3,"bytes":null,"files":2}},"rows":{"good":3},'
    '"bytes":{"good":90},"files":{"good":1},"watermarks":{},"idle":[],"counts":{}}},"missing":[],'
    '"gates":{"checked":{"outcome":"hold","rows":3,"quarantined":0,"why":"","broken":[],"policy":{},"answer":'
    '{"approve":true,"by":"mia","note":"","at":"2026-03-01T10:01:00+00:00"}}},'
    '"states":{"state.totals":{"rows":3,"bytes":90,"delta":90,"files":1}},"tables":{"good":{"uri":"/a","version":4,'
    '"log_hash":"00","rows":3}},"commits":["good"],"manifest":null,"timeout_s":600.0,"set_aside":false,'
    '"config":{"root":"/a"},"config_fingerprint":"c","code_fingerprint":"d"}'
)
"""As 0.1 wrote it, before rows in flight and intervals were kept."""


def test_rows_of_older_versions_are_read():
    details = msgspec.json.decode(OLD, type=CheckpointDetails)
    assert details.staged_rows == {"good": 3}
    assert details.amounts_read["in"].rows == 3
    assert details.sources["in"].pace is not None
    assert (details.overtaken_jobs, details.by_interval) == ({}, None)
    assert details.gates["checked"].answer is not None
    assert msgspec.json.decode("{}", type=CheckpointDetails) == CheckpointDetails()


def test_documents_have_the_names_of_attributes_though_older_ones_are_stored():
    details = msgspec.json.decode(OLD, type=CheckpointDetails)
    document = document_of(details)
    source, job, gate = document["sources"]["in"], document["jobs"]["main"], document["gates"]["checked"]
    assert (source["has_more"], source["is_empty"], source["pace"]["planned"]) == (True, False, 800)
    assert job["read"] == {"in": {"rows": 3, "bytes": None, "files": 2}}
    assert (gate["answer"]["answered_by"], gate["not_released"]) == ("mia", {})
    assert (document["missing_acks"], document["overtaken_jobs"], document["quarantine_all"]) == ([], {}, False)
    stored = {"missing", "behind", "set_aside", "restart"}
    assert stored.isdisjoint(document), "these are names of the history's table only"


def test_rows_of_newer_versions_are_read_and_no_key_is_lost_for_older_ones():
    newer = OLD.replace('"reason":', '"unheard_of":1,"reason":', 1).replace('"delay":', '"unheard_of":{},"delay":', 1)
    details = msgspec.json.decode(newer, type=CheckpointDetails)
    assert details == msgspec.json.decode(OLD, type=CheckpointDetails)
    assert holds(msgspec.to_builtins(details), msgspec.json.decode(OLD))


def holds(new: object, old: object) -> bool:
    """Whether all that is in `old` is in `new`."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(name in new and holds(new[name], value) for name, value in old.items())
    return new == old


def test_details_that_cannot_be_read_hide_nothing_else(world, monkeypatch):
    world.checkpoint("one", rows=3)
    row = live_row(world.ledger, world.ledger.entry(1))
    table = rows_table([row])
    broken = table.set_column(table.column_names.index("details"), "details", [['{"jobs": 3}']])
    monkeypatch.setattr("tidegate.history.table.rows_table", lambda rows: broken)
    remember(world.ledger, {})
    history = CheckpointHistory(world.ledger, {})
    monkeypatch.setattr(history.ledger, "entry", lambda id: None)
    view = history.find(1)
    assert view is not None
    assert (view.rows_out, view.details) == (row.rows_out, CheckpointDetails())
    assert "the details of checkpoint 1 cannot be read" in history.problem
