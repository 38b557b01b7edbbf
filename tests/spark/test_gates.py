"""Gates in a pipeline: a verdict is part of the ack, and the decision follows it."""

from __future__ import annotations

import contextlib
import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.checkpoint.approvals import answer
from tidegate.cli.main import main
from tidegate.connectors.sink import SinkContext, Staging
from tidegate.coordinator import Triggered
from tidegate.delta import Location, live_files, open_table
from tidegate.errors import Invalid
from tidegate.execution.job.run_job import run_job
from tidegate.gates import (
    BrokenRule,
    Expectations,
    Freshness,
    Gate,
    GateContext,
    Judgement,
    SchemaDrift,
    Unseen,
    Volume,
)
from tidegate.records.place import Place
from tidegate.records.records import Ack, Json
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=50)

SUITE = """
name: rows
expectations:
  - {type: expect_column_values_to_be_unique, kwargs: {column: id}, id: once}
  - {type: expect_column_values_to_be_between, kwargs: {column: v, min_value: 0}, id: positive}
  - {type: expect_column_values_to_not_be_null, kwargs: {column: v, mostly: 0.5}, severity: warning, id: known}
  - {type: expect_column_mean_to_be_between, kwargs: {column: v, max_value: 100}, severity: info, id: mean}
"""
GOOD = [{"id": 1, "v": 1.0}, {"id": 2, "v": 2.0}]
BAD = [{"id": 3, "v": 3.0}, {"id": 4, "v": -4.0}, {"id": 5, "v": 5.0}, {"id": 5, "v": 6.0}, {"id": 7}]


def play(root: Path, spark: Any, sink: type[DeltaAppend] = DeltaAppend, **policy: Any) -> SmallPipeline:
    folder = root / "include" / "expectations"
    folder.mkdir(parents=True)
    (folder / "rows.yaml").write_text(SUITE)

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, v double")

        @pipeline.stage(rows)
        def marked(rows: Any) -> Any:
            from pyspark.sql import functions as f

            return rows.withColumn("mark", f.rand())  # a stage that is not the same twice

        checked = marked.gate(Expectations("rows", **policy), name="checked")
        checked.sink("kept", sink("tables/kept"))

    return SmallPipeline(root, spark, build)


def checkpoint(play: SmallPipeline) -> tuple[Ack, Any]:
    """One checkpoint to its end, whichever that is."""
    coordinator = play.coordinator()
    triggered = coordinator.trigger(f"run {coordinator.ledger.view().last_id + 1}")
    assert isinstance(triggered, Triggered)
    ack = run_job(coordinator, triggered.plan.id, "main", play.spark)
    outcome = coordinator.complete(triggered.plan.id)
    coordinator.publish()
    return ack, outcome


def test_bad_rows_go_to_quarantine_in_the_same_decision_as_the_good_ones(spark, tmp_path):
    played = play(tmp_path, spark, on_failure={"critical": "quarantine", "warning": "warn"})
    played.feed(GOOD)
    ack, outcome = checkpoint(played)
    assert outcome.state == "completed"
    assert (ack.gates["checked"].outcome, ack.gates["checked"].rows) == ("pass", 2)
    assert not (tmp_path / "ledger/play/quarantine").exists()

    played.feed(BAD)
    ack, outcome = checkpoint(played)
    assert outcome.state == "completed"
    verdict = ack.gates["checked"]
    assert (verdict.outcome, verdict.rows, verdict.quarantined) == ("quarantine", 5, 3)
    assert [(each.rule, each.policy, each.rows) for each in verdict.broken] == [
        ("once", "quarantine", 2),
        ("positive", "quarantine", 1),
    ]
    assert verdict.policy["suite"] == "rows"
    results = played.coordinator().ledger.unpack(verdict.results)
    assert results["statistics"]["evaluated_expectations"] == 4
    assert results["results"][1]["result"]["partial_unexpected_list"] == ["-4.0"]

    assert sorted(row["id"] for row in played.rows("tables/kept")) == [1, 2, 3, 7]
    aside = played.rows("ledger/play/quarantine/checked")
    told = sorted((r["id"], r["v"], r["_tidegate_rules"], r["_tidegate_checkpoint"]) for r in aside)
    assert told == [(4, -4.0, ["positive"], 2), (5, 5.0, ["once"], 2), (5, 6.0, ["once"], 2)]
    assert {row["_tidegate_stream"] for row in aside} == {"marked"}
    assert len({row["_tidegate_id"] for row in aside}) == 3
    marks = {row["mark"] for row in [*aside, *played.rows("tables/kept")]}
    assert len(marks) == 7

    played.feed(BAD)
    checkpoint(played)
    assert len(played.rows("ledger/play/quarantine/checked")) == 6, "the next one is added"


def test_rows_are_staged_once_and_the_table_has_files_like_any_other(spark, tmp_path, monkeypatch):
    """Right before a table nothing is kept in Spark: what is judged is what is staged."""
    kept = []
    monkeypatch.setattr("tidegate.gates.judging.row_marks.materialize", lambda frame: kept.append(frame) or frame)
    played = play(tmp_path, spark, on_failure={"critical": "quarantine", "warning": "warn"})
    for rows in (GOOD, BAD, [{"id": 9, "v": -9.0}]):
        played.feed(rows)
        checkpoint(played)
    assert kept == []
    table = DeltaTable(str(tmp_path / "tables/kept"))
    paths = {str(tmp_path / "tables/kept" / path) for path in table.get_add_actions()["path"].to_pylist()}
    assert paths == {str(path) for path in tmp_path.rglob("tables/kept/**/*.parquet")}, "nothing else is left"
    for path in paths:
        with pq.ParquetFile(path) as file:
            assert file.schema_arrow.names == ["id", "v", "mark"]
            assert "_tidegate" not in str(file.metadata.metadata)
    stats = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {(each["num_records"], each["min.id"], each["max.id"], each["null_count.v"]) for each in stats} == {
        (2, 1, 2, 0),
        (2, 3, 7, 1),
    }
    by_spark = spark.read.format("delta").load(str(tmp_path / "tables/kept")).orderBy("id").collect()
    assert [(row["id"], row["v"]) for row in by_spark] == [(1, 1.0), (2, 2.0), (3, 3.0), (7, None)]
    assert by_spark[0].__fields__ == ["id", "v", "mark"]
    aside = played.rows("ledger/play/quarantine/checked")
    assert sorted((row["id"], row["_tidegate_checkpoint"]) for row in aside) == [(4, 2), (5, 2), (5, 2), (9, 3)]


def test_where_bad_rows_are_the_rule_files_are_staged_as_drafts_and_the_table_never_has_one(spark, tmp_path):
    """The last checkpoint tells. If none is bad after all, the files are written anew for the table all the same."""
    staged = []

    class Asked(DeltaAppend):
        def prestage(self, *args: Any, **named: Any) -> Any:
            ahead = super().prestage(*args, **named)
            files = [str(tmp_path / "tables/kept" / source.path) for source in ahead.sources]
            staged.append({codec for file in files for codec in codecs(file)})
            return ahead

    played = play(tmp_path, spark, Asked, on_failure={"critical": "quarantine"})
    told = []
    for rows in (BAD, BAD, GOOD, GOOD):
        played.feed(rows)
        ack, outcome = checkpoint(played)
        told.append(ack.memory["gate.checked"])
        assert outcome.state == "completed"
    assert told == [{"draft": []}, {"draft": []}, {}, {}]
    assert staged == [{"SNAPPY"}, {"UNCOMPRESSED"}, {"UNCOMPRESSED"}, {"SNAPPY"}]
    assert sorted(row["id"] for row in played.rows("tables/kept")) == [1, 1, 2, 2, 3, 3, 7, 7]
    assert len(played.rows("ledger/play/quarantine/checked")) == 6
    paths = [str(path) for path in tmp_path.rglob("tables/kept/**/*.parquet")]
    stats = pa.table(DeltaTable(str(tmp_path / "tables/kept")).get_add_actions(flatten=True)).to_pylist()
    assert [each["min.id"] for each in stats if each["num_records"]].count(None) == 0
    assert len(paths) == len(stats)
    for path in paths:
        assert codecs(path) == {"SNAPPY"}
        assert pq.read_schema(path).names == ["id", "v", "mark"]


def codecs(path: str) -> set[str]:
    """How the columns of a file are compressed."""
    group = pq.read_metadata(path).row_group(0)
    return {group.column(place).compression for place in range(group.num_columns)}


def test_a_file_with_bad_rows_among_many_without_makes_no_drafts(spark, tmp_path):
    """Only that one is written anew: drafts would all have to be. Of drafts, texts are numbers where few differ."""
    suite = tmp_path / "most.yaml"
    suite.write_text(
        "expectations: [{type: expect_column_values_to_be_between, kwargs: {column: id, min_value: LEAST}}]"
    )
    gate = Expectations(str(suite), on_failure="quarantine")
    text = suite.read_text()
    judged = Judgement(0)
    frame = spark.range(0, 40, 1, 4).selectExpr("id", "'a text' AS few", "cast(id AS string) AS many")
    for least, memory in ((5, {}), (25, {"draft": ["few"]}), (26, {"draft": ["few"]})):
        suite.write_text(text.replace("LEAST", str(least)))
        place = Place(str(tmp_path))
        into = partial(
            DeltaAppend(f"t{least}").prestage,
            context=SinkContext("p", "u", "s", place, home="p"),
            staging=Staging(1, "a"),
        )
        judged = gate.judge(frame, GateContext("p", "checked", place, memory=judged.memory, stage=into))
        assert judged.quarantined is not None
        assert sum(rows.num_rows for rows in judged.quarantined) == least
        assert judged.memory == memory


def test_both_ways_to_judge_come_to_the_same_and_fill_the_same_quarantine(spark, tmp_path, monkeypatch):
    """Staged first, or kept in Spark: the other is the way of everything but a plain append on this machine."""
    from tidegate.connectors.delta.sink import append

    possible = append.can_prestage
    played = play(tmp_path, spark, on_failure={"critical": "quarantine", "warning": "warn"})
    verdicts, schemas = [], []
    for staged in (True, False, True):
        monkeypatch.setattr(append, "can_prestage", possible if staged else lambda *_: False)
        played.feed(BAD)
        ack, _ = checkpoint(played)
        verdict = ack.gates["checked"]
        results = played.coordinator().ledger.unpack(verdict.results)
        for each in results["results"]:
            each["result"]["partial_unexpected_list"] = set(each["result"].get("partial_unexpected_list", ()))
        verdicts.append((verdict.outcome, verdict.rows, verdict.quarantined, verdict.broken, results))
        schemas.append(DeltaTable(str(tmp_path / "ledger/play/quarantine/checked")).schema().to_json())
    assert verdicts[0] == verdicts[1] == verdicts[2]
    assert schemas[0] == schemas[1] == schemas[2]
    aside = played.rows("ledger/play/quarantine/checked")
    told = sorted((row["_tidegate_checkpoint"], row["id"], row["v"], *row["_tidegate_rules"]) for row in aside)
    one = [(4, -4.0, "positive"), (5, 5.0, "once"), (5, 6.0, "once")]
    assert told == [(checkpoint, *row) for checkpoint in (1, 2, 3) for row in one]
    assert len({row["_tidegate_id"] for row in aside}) == 9
    assert sorted(row["id"] for row in played.rows("tables/kept")) == [3, 3, 3, 7, 7, 7]


def test_what_others_take_too_or_a_table_cannot_stage_first_is_judged_before_it_is_staged(spark, tmp_path):
    """Two tables behind a gate, folders by value, upserts: the same rows everywhere."""
    played = play(tmp_path, spark)
    asked = []

    class Asked(DeltaAppend):
        def prestage(self, *args: Any, **named: Any) -> Any:
            asked.append(super().prestage(*args, **named))
            return asked[-1]

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, v double")
        policy = {"critical": "quarantine"}
        twice = rows.gate(Expectations("rows", on_failure=policy), name="twice")
        twice.sink("a", Asked("tables/a"))
        twice.sink("b", Asked("tables/b"))
        parted = rows.gate(Expectations("rows", on_failure=policy), name="parted")
        parted.sink("c", Asked("tables/c", partition_by=["id"]))
        rows.gate(Expectations("rows", on_failure=policy), name="newest").sink(
            "d", DeltaUpsert("tables/d", keys=["id"])
        )

    played = SmallPipeline(tmp_path, spark, build)
    played.feed(BAD)
    ack, outcome = checkpoint(played)
    assert (outcome.state, asked) == ("completed", [None])
    for name in "abcd":
        assert sorted(row["id"] for row in played.rows(f"tables/{name}")) == [3, 7]
    assert {name: verdict.quarantined for name, verdict in ack.gates.items()} == {"twice": 3, "parted": 3, "newest": 3}


def cli(*arguments: str) -> Any:
    """What a command says, as JSON."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main([*arguments, "--json"])
    return code, json.loads(out.getvalue())


def test_released_rows_continue_behind_the_gate_once_and_are_marked(spark, tmp_path, monkeypatch):
    played = play(tmp_path, spark, on_failure={"critical": "quarantine"})
    played.feed(BAD)
    checkpoint(played)
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    monkeypatch.chdir(tmp_path)
    gate = ("play", "checked")
    _, rows = cli("quarantine", "show", *gate, "--rule", "once")
    ids = [row["_tidegate_id"] for row in rows["rows"]]
    assert (rows["total"], {row["id"] for row in rows["rows"]}) == (2, {5})

    assert cli("quarantine", "release", *gate, "--rule", "positive", "--set", "v=0.5")[1]["rows"] == 1
    assert cli("quarantine", "release", *gate, "--id", ids[0][:8])[1]["request"] == 2
    assert cli("quarantine", "discard", *gate, "--all", "--yes")[1]["request"] == 3, "what is left, when it is its turn"
    assert cli("quarantine", "withdraw", *gate, "3")[0] == 0
    requests = cli("quarantine", "list", "play")[1]["gates"]["checked"]["requests"]
    assert [(each["number"], each["rows"]) for each in requests] == [(1, 1), (2, 1)]

    coordinator = played.coordinator()
    id = coordinator.trigger("dies", only_if_new=True).plan.id  # nothing but the requests is new
    run_job(coordinator, id, "main", spark)
    coordinator.abort(id, "RUN_GONE")
    assert {row["id"] for row in played.rows("tables/kept")} == {3, 7}
    played.feed([{"id": 8, "v": -8.0}])
    ack, outcome = checkpoint(played)
    assert (outcome.state, ack.gates["checked"].released, ack.gates["checked"].quarantined) == ("completed", 2, 1)
    kept = sorted((row["id"], row["v"]) for row in played.rows("tables/kept") if row["v"] is not None)
    assert kept[:2] == [(3, 3.0), (4, 0.5)], "corrected"
    assert [row[0] for row in kept] == [3, 4, 5]
    aside = played.rows("ledger/play/quarantine/checked")
    fates = {(r["id"], r["v"]): (r["_tidegate_settled"], r["_tidegate_settled_in"]) for r in aside}
    assert (fates[4, -4.0], fates[8, -8.0]) == (("released", 3), (None, None))
    fives = {row["_tidegate_id"]: row["_tidegate_settled"] for row in aside if row["id"] == 5}
    assert (fives.pop(ids[0]), *fives.values()) == ("released", None)
    assert {len(row["_tidegate_settled_by"] or "") > 0 for row in aside if row["_tidegate_settled"]} == {True}

    assert cli("quarantine", "release", *gate, "--id", ids[0])[1]["error"]["reason"] == "NO_ROWS", "once"
    assert cli("quarantine", "withdraw", *gate, "1")[1]["error"]["reason"] == "TAKEN_UP"
    assert cli("quarantine", "discard", *gate, "--all", "--yes")[1]["rows"] == 2
    checkpoint(played)
    assert cli("quarantine", "list", "play")[1]["gates"]["checked"]["waiting"] == 0
    assert len(played.rows("tables/kept")) == 4
    table = Path(played.root, "ledger/play/quarantine/checked")
    live = {file.path for file in live_files(open_table(Location(str(table))))}
    there = {str(path.relative_to(table)) for path in table.rglob("*.parquet")}
    assert live < there, "what marking has replaced is kept for those who go back"
    taken_up = "It processes request 1, 2 for rows in quarantine of gate checked."
    assert taken_up in cli("explain", "play", "3")[1]["events"]
    played.feed(GOOD)
    played.limit(num_retained=1)
    checkpoint(played)
    played.coordinator().retire()
    assert live == {str(path.relative_to(table)) for path in table.rglob("*.parquet")}, "and goes with the last of them"


def test_rows_are_not_released_without_the_values_that_they_have(spark, tmp_path, monkeypatch):
    played = play(tmp_path, spark, on_failure={"critical": "quarantine"})
    played.feed(BAD)
    checkpoint(played)
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    (tmp_path / "include/expectations/rows.yaml").write_text(SUITE.replace("column: v", "column: value"))
    monkeypatch.chdir(tmp_path)

    def renamed(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, v double")
        value = pipeline.stage(rows, name="value")(lambda rows: rows.selectExpr("id", "v AS value", "rand() AS mark"))
        checked = value.gate(Expectations("rows", on_failure={"critical": "quarantine"}), name="checked")
        checked.sink("renamed", DeltaAppend("tables/renamed"))

    played.build = renamed
    gate = ("play", "checked")
    for number, correction in ((1, ()), (2, ("--set", "v=0.5"))):
        assert cli("quarantine", "release", *gate, "--rule", "positive", *correction)[1]["request"] == 2 * number - 1
        id = played.coordinator().trigger(f"loses {number}").plan.id
        with pytest.raises(Invalid, match="releases rows of gate 'checked' with values in v") as caught:
            run_job(played.coordinator(), id, "main", spark)
        assert caught.value.reason == "VALUES_LOST"
        played.coordinator().abort(id, "JOB_FAILED")
        assert f"tidegate quarantine withdraw PIPELINE checked {2 * number - 1}" in caught.value.help
        assert cli("quarantine", "withdraw", *gate, str(2 * number - 1))[0] == 0

    assert cli("quarantine", "release", *gate, "--rule", "positive", "--null", "v")[1]["rows"] == 1
    ack, outcome = checkpoint(played)
    assert (outcome.state, ack.gates["checked"].released) == ("completed", 1)
    assert [(row["id"], row["value"]) for row in played.rows("tables/renamed")] == [(4, None)]


def test_what_is_asked_of_quarantine_is_checked_before_it_is_asked(spark, tmp_path, monkeypatch):
    played = play(tmp_path, spark, on_failure={"critical": "quarantine"})
    played.feed(BAD)
    checkpoint(played)
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    monkeypatch.chdir(tmp_path)
    for arguments, reason in (
        (("release", "play", "checked"), "INVALID"),
        (("release", "play", "checked", "--all", "--set", "v=much"), "BAD_VALUE"),
        (("release", "play", "checked", "--all", "--set", "w=1"), "NO_SUCH_COLUMN"),
        (("release", "play", "checked", "--all", "--set", "_tidegate_id=1"), "NO_SUCH_COLUMN"),
        (("release", "play", "checked", "--id", "zz"), "NO_SUCH_ROW"),
        (("release", "play", "checked", "--rule", "onc"), "NO_SUCH_RULE"),
        (("release", "play", "check", "--all"), "NO_QUARANTINE"),
        (("discard", "play", "checked", "--all"), "INVALID"),
        (("withdraw", "play", "checked", "1"), "NO_SUCH_REQUEST"),
    ):
        code, said = cli("quarantine", *arguments)
        assert (code in (1, 2), said["error"]["reason"]) == (True, reason), arguments
    assert not (tmp_path / "ledger/play/asked").exists()


def test_what_was_rejected_is_set_aside_as_a_whole_if_somebody_chooses_so(spark, tmp_path):
    played = play(tmp_path, spark, on_failure={"critical": "hold", "warning": "quarantine"})
    played.feed(BAD)
    ack, outcome = checkpoint(played)
    assert (outcome.state, outcome.reason, ack.gates["checked"].outcome) == ("open", "HELD", "hold")
    coordinator = played.coordinator()
    answer(coordinator.ledger, 1, None, approve=False, by="ann")
    assert coordinator.complete(1).reason == "GATE_REJECTED"
    coordinator.resume("ann", quarantine_all=True)

    ack, outcome = checkpoint(played)
    verdict = ack.gates["checked"]
    assert (outcome.state, verdict.outcome, verdict.rows, verdict.quarantined) == ("completed", "quarantine", 5, 5)
    assert verdict.why == "it would be held again, but a user chose to quarantine all of it"
    assert {each.policy for each in verdict.broken} == {"quarantine"}
    assert played.rows("tables/kept") == []
    aside = played.rows("ledger/play/quarantine/checked")
    assert [tuple(row["_tidegate_rules"]) for row in aside] == [("once", "positive")] * 5

    played.feed(BAD)
    ack, outcome = checkpoint(played)
    assert outcome.reason == "HELD", "it was chosen for one checkpoint"


def test_rows_that_break_the_rules_that_held_them_are_set_aside_and_the_others_published(spark, tmp_path):
    """A person has chosen that. at_most is for rows about which nobody was asked."""
    played = play(tmp_path, spark, on_failure={"critical": "hold", "warning": "quarantine"}, at_most=0.5)
    played.feed(BAD)
    assert checkpoint(played)[1].reason == "HELD"
    coordinator = played.coordinator()
    answer(coordinator.ledger, 1, None, approve=False, quarantine=True, by="ann")
    assert coordinator.complete(1).reason == "GATE_QUARANTINED"

    ack, outcome = checkpoint(played)
    verdict = ack.gates["checked"]
    assert (outcome.state, verdict.outcome, verdict.rows, verdict.quarantined) == ("completed", "quarantine", 5, 3)
    assert verdict.why == "it would be held again, but a user chose to quarantine the rows that break its rules"
    kept, aside = played.rows("tables/kept"), played.rows("ledger/play/quarantine/checked")
    assert (len(kept), len(aside)) == (2, 3)


def test_if_no_single_row_is_to_blame_all_that_was_held_is_set_aside(spark, tmp_path):
    def few(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, v double")
        rows.gate(Volume(least=100, on_failure="hold"), name="few").sink("kept", DeltaAppend("tables/kept"))

    played = play(tmp_path, spark)
    played.build = few
    played.feed(GOOD)
    assert checkpoint(played)[1].reason == "HELD"
    answer(played.coordinator().ledger, 1, None, approve=False, quarantine=True, by="ann")
    assert played.coordinator().complete(1).reason == "GATE_QUARANTINED"
    ack, outcome = checkpoint(played)
    verdict = ack.gates["few"]
    assert (outcome.state, verdict.outcome, verdict.quarantined) == ("completed", "quarantine", verdict.rows)
    assert played.rows("tables/kept") == []


def test_too_many_bad_rows_abort(spark, tmp_path):
    played = play(tmp_path, spark, on_failure="quarantine", at_most=0.5)
    played.feed(BAD)
    ack, outcome = checkpoint(played)
    assert (outcome.state, outcome.reason, outcome.counts) == ("aborted", "GATE_FAILED", True)
    assert (
        "gate 'checked': 3 of 5 rows are bad, and at most 50 % may be; its input is 000001.json of source rows"
        in outcome.detail
    )
    assert (ack.sinks, ack.gates["checked"].outcome) == ({}, "abort")
    assert not list(tmp_path.rglob("*.parquet")), "what was staged is removed"


def test_of_many_files_that_an_aborting_gate_looked_at_a_few_are_named(spark, tmp_path):
    played = play(tmp_path, spark)
    for row in [*GOOD, *BAD, {"id": 9, "v": 9.0}]:
        played.feed([row])
    _, outcome = checkpoint(played)
    named = "000001.json, 000002.json, 000003.json, 000004.json, …, 000008.json (8 files) of source rows"
    assert outcome.detail.endswith(f"its input is {named}")


def test_a_broken_rule_aborts_and_the_next_run_gets_the_same_rows_again(spark, tmp_path):
    played = play(tmp_path, spark)
    played.feed(BAD)
    _, outcome = checkpoint(played)
    assert (outcome.state, outcome.reason) == ("aborted", "GATE_FAILED")
    assert "once: 2 of 5 rows break it" in outcome.detail
    assert "positive: 1 of 5 rows break it" in outcome.detail
    assert outcome.detail.endswith("; its input is 000001.json of source rows"), "where to look for them"
    assert played.rows("tables/kept") == []
    assert not list(tmp_path.rglob("tables/**/*.parquet")), "what was staged before it was judged"
    (tmp_path / "include/expectations/rows.yaml").write_text(
        SUITE.replace("critical", "info").replace("min_value: 0", "min_value: -9")
    )
    played = SmallPipeline(tmp_path, spark, lambda pipeline: warned(pipeline))
    ack, outcome = checkpoint(played)
    assert (outcome.state, ack.gates["rows-expectations-rows"].outcome) == ("completed", "warn")
    assert len(played.rows("tables/kept")) == 5


def warned(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "id long, v double")
    rows.gate(Expectations("rows", on_failure="warn")).sink("kept", DeltaAppend("tables/kept"))


def test_a_broken_suite_declines_the_checkpoint_before_anything_is_planned(spark, tmp_path):
    played = play(tmp_path, spark)
    played.feed(GOOD)
    (tmp_path / "include/expectations/rows.yaml").write_text("expectations: []")
    with pytest.raises(Invalid, match="rows.yaml:1: expectations is empty"):
        checkpoint(played)
    assert played.coordinator().ledger.ids() == []


class AtLeast(Gate):
    """A gate of a user's own."""

    kind = "at-least"

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def describe(self) -> Json:
        return {"rows": self.rows}

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        count = frame.count()
        if count >= self.rows:
            return Judgement(count)
        return Judgement(count, (BrokenRule("rows", "abort", why=f"{count} are too few for {context.gate}"),))


def test_a_gate_of_your_own_is_a_small_class(spark, tmp_path):
    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, v double")
        enough = rows.gate(AtLeast(2))
        enough.aggregate(by="id", n="count(*)").sink("counts", DeltaAppend("tables/counts", changelog=True))

    played = SmallPipeline(tmp_path, spark, build)
    played.feed(GOOD)
    assert checkpoint(played)[1].state == "completed"
    played.feed(GOOD[:1])
    _, outcome = checkpoint(played)
    read = "its input is 000002.json of source rows"
    assert outcome.detail == f"gate 'rows-at-least': rows: 1 are too few for rows-at-least; {read}"
    played.feed(GOOD)
    assert checkpoint(played)[1].state == "completed"
    told = sorted((row["id"], row["n"]) for row in played.rows("tables/counts"))
    assert told == [(1, 1), (1, 3), (2, 1), (2, 2)], "what was aborted is in the next one, as its rows are"


def test_gates_that_look_beyond_the_rows_of_a_checkpoint(spark, tmp_path):
    """At the table that they go to, and at the checkpoints before."""
    folder = tmp_path / "include" / "expectations"
    folder.mkdir(parents=True)
    unique = "{type: expect_column_values_to_be_unique, kwargs: {column: id}, id: once}"
    most = "{type: expect_table_row_count_to_be_between, kwargs: {max_value: 6}, id: most}"
    (folder / "table.yaml").write_text(f"expectations: [{unique}, {most}]")

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, v double, at timestamp")
        rows = rows.gate(Volume(0.5, after=1, on_failure="warn"), name="volume")
        rows = rows.gate(Freshness("at", "36500 days"), name="fresh").gate(SchemaDrift(), name="drift")
        whole = rows.gate(Expectations("table", over="tables/kept", on_failure="quarantine"), name="whole")
        whole.sink("kept", DeltaAppend("tables/kept"))
        latest = rows.gate(Expectations("table", over="tables/latest", keys=["id"]), name="latest")
        latest.sink("latest", DeltaUpsert("tables/latest", keys=["id"]))

    played = SmallPipeline(tmp_path, spark, build)
    played.feed([{"id": 1, "v": 1.0, "at": "2026-03-01T00:00:00Z"}, {"id": 2, "v": 1.0}])
    ack, _ = checkpoint(played)
    assert {name: said.outcome for name, said in ack.gates.items()} == dict.fromkeys(ack.gates, "pass")
    assert ack.memory["gate.volume"] == {"rows": [2]}
    assert ack.memory["gate.drift"]["columns"]["at"] == "timestamp"

    played.feed([{"id": 2, "v": 2.0}, {"id": 3, "v": 2.0}, {"id": 4, "v": 2.0}, {"id": 5, "v": 2.0}])
    ack, outcome = checkpoint(played)
    assert outcome.state == "completed"
    assert ack.gates["volume"].broken[0].why == "4 rows; the median of the last 1 checkpoints is 2: 200% of it"
    assert (ack.gates["whole"].outcome, ack.gates["whole"].quarantined) == ("quarantine", 1), "id 2 is in the table"
    assert ack.gates["whole"].broken[0].rows == 2, "the one there, and the new one"
    assert ack.gates["latest"].outcome == "pass", "there it takes the other's place"
    assert sorted((row["id"], row["v"]) for row in played.rows("tables/kept")) == [
        (i, (1.0, 2.0)[i > 2]) for i in range(1, 6)
    ]
    (aside,) = played.rows("ledger/play/quarantine/whole")
    assert (aside["id"], aside["v"], aside["_tidegate_rules"]) == (2, 2.0, ["once"])

    played.feed([{"id": 6, "v": 3.0}, {"id": 7, "v": 3.0}])
    ack, outcome = checkpoint(played)
    assert (outcome.state, "most" in outcome.detail) == ("aborted", True), "seven would be in the table"


def test_a_key_that_an_operator_knows_already_is_set_aside_before_it_comes_there(spark, tmp_path):
    policy: Any = "quarantine"

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "a long, b string, v long")
        new = rows.gate(Unseen(["a", "b"], against="once", on_failure=policy), name="new")
        new.deduplicate(by=["b", "a"], uid="once").sink("kept", DeltaAppend("tables/kept"))

    played = SmallPipeline(tmp_path, spark, build)
    played.feed(
        [{"a": 1, "b": "x", "v": 1}, {"a": 2, "b": "x", "v": 1}, {"a": 3, "b": "y", "v": 1}, {"a": 3, "b": "y"}]
    )
    ack, _ = checkpoint(played)
    assert [(each.rule, each.rows) for each in ack.gates["new"].broken] == [("repeated", 2)], "nothing is known yet"

    played.feed(
        [{"a": 1, "b": "x", "v": 2}, {"a": 1, "b": "z", "v": 2}, {"a": 3, "b": "y", "v": 2}, {"v": 2}, {"v": 2}]
    )
    policy = "abort"
    assert checkpoint(played)[1].state == "aborted"
    policy = "quarantine"
    ack, outcome = checkpoint(played)
    assert (outcome.state, ack.gates["new"].rows, ack.gates["new"].quarantined) == ("completed", 5, 1)
    assert [(each.rule, each.why) for each in ack.gates["new"].broken] == [
        ("seen", "1 rows have a key that 'once' holds already")
    ]

    played.feed([{"a": 2, "b": "x", "v": 3}, {"a": 2, "b": "x", "v": 4}])
    checkpoint(played)
    kept = sorted((row["a"] or 0, row["b"] or "", row["v"]) for row in played.rows("tables/kept"))
    assert kept == [(0, "", 2), (1, "x", 1), (1, "z", 2), (2, "x", 1), (3, "y", 2)], "of null keys the operator decides"
    aside = [(row["a"], row["v"], row["_tidegate_rules"]) for row in played.rows("ledger/play/quarantine/new")]
    assert sorted(aside, key=str) == sorted(
        [
            (3, 1, ["repeated"]),
            (3, None, ["repeated"]),
            (1, 2, ["seen"]),
            *((2, v, ["seen", "repeated"]) for v in (3, 4)),
        ],
        key=str,
    )


def test_a_gate_is_against_an_operator_that_never_forgets_in_its_own_job():
    pipeline = Pipeline("p")
    rows = sources(pipeline, "id long, at timestamp")
    given = {
        "nobody": "'nobody', which is no operator: expected the uid of one (apart, other, short)",
        "short": "'short', which forgets keys: expected a deduplicate, latest or aggregate without end",
        "other": "'other', which is keyed by v, not by id: judge by the same columns",
        "apart": "'apart' of job 'elsewhere', but is in job 'main': a state is only available in its own job",
    }
    for number, uid in enumerate(given):
        rows.gate(Unseen("id", against=uid), name=f"g{number}").sink(f"s{number}", DeltaAppend(f"t{number}"))
    rows.deduplicate(by="id", within="1 day", uid="short").sink("short", DeltaAppend("short"))
    rows.deduplicate(by="v", uid="other").sink("other", DeltaAppend("other"))
    rows.job("elsewhere").deduplicate(by="id", uid="apart").sink("apart", DeltaAppend("apart"))
    rows.gate(Unseen([], on_failure="stop", at_most=2), name="bad").sink("bad", DeltaAppend("bad"))  # type: ignore[arg-type]
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    for number, why in enumerate(given.values()):
        assert f"gate 'g{number}' is against {why}" in refused.value.what
    assert "gate 'bad': policy 'stop' for on_failure" in refused.value.what
    assert "gate 'bad': at_most is 2: expected a share from 0 to 1" in refused.value.what


def test_what_is_wrong_with_a_gate_is_told_with_the_rest_of_the_pipeline():
    pipeline = Pipeline("p")
    rows = sources(pipeline, "id long")
    rows.gate(Expectations("rows", on_failure="stop"), name="a").sink("s", DeltaAppend("t"))
    rows.gate("rows", name="b")  # type: ignore[arg-type]
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    assert "gate 'a': policy 'stop' for severity critical" in refused.value.what
    assert "gate 'b' is a str, not a Gate such as Expectations(…)" in refused.value.what
    assert "'b' feeds nothing" in refused.value.what
