"""What the race writes down, and what becomes of it: no engine is started."""

from __future__ import annotations

import json

import pytest

from tests.bench import nexmark, nexmark_report
from tests.bench.harness import Options
from tests.nexmark.playing import NAMES


def side(*seconds: float, start: float = 10.0):
    rounds = [{"seconds": each, "core_seconds": 2 * each, "megabytes": 100.0, "checkpoints": 10} for each in seconds]
    return {"start_s": start, "start_core_s": start, "first": rounds[0], "rounds": {"10": rounds, "1": rounds[:1]}}


def query(**sides):
    told = {"events": 1_000_000, "cuts": 10, "at": "2026-11-26 10:00", "commit": "abc", "machine": "x", "load": 1.0}
    return told | {"sides": sides}


MEASURED = {
    "q0": query(ours=side(4.0, 1.0, 2.0), streaming=side(8.0), flink_rocksdb=side(2.0), flink_heap=side(1.0)),
    "q4": query(ours=side(6.0), streaming={"cannot": "no such aggregate"}, flink_rocksdb={"failed": "out of memory"}),
}


def test_ratios_are_over_what_both_have_and_what_is_missing_is_named():
    result = nexmark.result(Options(), MEASURED, 1_000_000, 10)
    assert (result.keys["ratio_streaming"], result.keys["ratio_flink_rocksdb"]) == (0.25, 1.0)
    assert result.ours_s == 8.0
    assert result.keys["failed"] == {"q4 flink_rocksdb": "out of memory"}
    assert result.keys["not_measured"].split() == [name for name in NAMES if name not in MEASURED]
    assert result.equal


@pytest.mark.parametrize("told", [{"failed": "it ended"}, {"failed": "3 rows missing", "unequal": True}])
def test_a_failure_of_ours_and_rows_that_differ_fail_the_bench(told):
    name = "streaming" if "unequal" in told else "ours"
    result = nexmark.result(Options(), MEASURED | {"q5": query(**{name: told})}, 1_000_000, 10)
    assert not result.equal
    assert told["failed"] in result.wrong


def test_the_table_has_a_row_for_each_query_and_says_why_a_figure_is_missing():
    text = nexmark_report.tables(MEASURED)
    assert "| q0 | 2 (4) | 8 (16) | 2 (4) | 1 (2) |" in text
    assert "| q4 | 6 (12) | – | – | – |" in text
    assert "| all 1 that each engine has | 2 (4) |" in text
    assert "| q0 | 14 (18) |" in text, "its start, and its first run"
    assert "- q4: Structured Streaming: no such aggregate" in text
    assert "- q4: Flink, RocksDB: out of memory" in text


def test_what_was_run_with_one_number_of_checkpoints_only_has_no_empty_table_for_the_other():
    many = side(2.0)
    del many["rounds"]["1"]
    text = nexmark_report.tables({"q0": query(ours=many)})
    assert "10 checkpoints" in text
    assert "one checkpoint" not in text


def test_what_has_been_measured_is_not_measured_again_but_what_failed_is(tmp_path, monkeypatch, capsys):
    turns = []
    monkeypatch.setattr(nexmark.Race, "turns", lambda race, name, engines: turns.append((name, engines)) or {})
    race = nexmark.Race(Options(quick=True, out=tmp_path), ["ours", "streaming"], 100, 2, 40, [2, 1])
    file = race.results / "q0.json"
    file.write_text(json.dumps(query(ours=side(1.0), streaming=side(1.0))))
    race.query("q0")
    assert turns == []
    assert "AGAIN=1" in capsys.readouterr().err
    file.write_text(json.dumps(query(ours=side(1.0), streaming={"failed": "no answer"})))
    race.query("q0")
    assert turns == [("q0", ["streaming"])]
    assert json.loads(file.read_text())["sides"]["ours"] == side(1.0)
    monkeypatch.setenv("AGAIN", "1")
    race.query("q0")
    assert turns[1:] == [("q0", ["ours", "streaming"])]
    file.write_text(json.dumps(query(ours=side(1.0), streaming=side(1.0))))
    monkeypatch.setenv("AGAIN", "ours")
    race.query("q0")
    assert turns[2:] == [("q0", ["ours"])]
    assert json.loads(file.read_text())["sides"]["streaming"] == side(1.0)


def test_a_second_way_to_write_a_query_has_figures_and_is_in_no_sum():
    measured = {"q15": query(ours=side(2.0), streaming=side(8.0), streaming_append=side(3.0))}
    measured["q0"] = query(ours=side(1.0), streaming=side(2.0), streaming_append={"cannot": "it replaces no rows"})
    text = nexmark_report.tables(measured)
    assert "| q15 | 2 (4) | 8 (16) | 3 (6) |" in text
    assert "| all 2 that each engine has | 3 (6) | 10 (20) | – |" in text
    keys = nexmark.result(Options(), measured, 1_000_000, 10).keys
    assert keys["ratio_streaming"] == 0.3
    assert round(keys["ratio_streaming_append"], 2) == 0.67


def test_a_query_that_an_engine_cannot_do_is_told_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(nexmark.Race, "turns", lambda race, name, engines: dict.fromkeys(engines, side(1.0)))
    race = nexmark.Race(Options(quick=True, out=tmp_path), ["ours", "streaming"], 100, 2, 40, [2, 1])
    race.query("q4")
    told = nexmark_report.told(race.results)["q4"]["sides"]
    assert told["ours"]["rounds"]
    assert "aggregate of an aggregate" in told["streaming"]["cannot"]
