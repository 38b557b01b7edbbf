"""Gates that compare rows with a table, or with the rows of earlier checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.kit.sampling import in_turn
from tests.spark.mended_shop import OneSession
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.backfill import OpenBackfill, begin, discard, replay
from tidegate.backfill.compare import difference_of
from tidegate.checkpoint.approvals import answer
from tidegate.coordinator import Triggered
from tidegate.errors import Invalid, Rejected
from tidegate.execution.analysis import analyse
from tidegate.execution.job.run_job import run_job
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates import Agrees, Anomaly, GateContext, Judgement, References, Unique
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend

pytestmark = in_turn(seconds=220)

QUARANTINE = "ledger/play/quarantine"


def repeated(played: SmallPipeline, cuts: Literal["recorded", "own"], name: str = "again") -> OpenBackfill:
    """A backfill of all checkpoints."""
    line = begin(played.coordinator(), name, 0, by="ann", cuts=cuts)
    replay(line, OneSession(played.spark), Schedule(), Observer())
    return line


def customers(played: SmallPipeline, *rows: str, mode: str = "append", columns: str = "id, region") -> None:
    """Write rows to the table that others keep."""
    frame = played.spark.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t({columns})")
    frame.write.format("delta").mode(mode).option("overwriteSchema", "true").save(str(played.root / "tables/customers"))


def orders(spark: Any, root: Path, **options: Any) -> SmallPipeline:
    options = {"to": "tables/customers", "key": "id", **options}

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "order_id long, customer_id int")
        known = rows.gate(References("customer_id", **options), name="known")
        known.sink("orders", DeltaAppend("tables/orders"))

    return SmallPipeline(root, spark, build)


def rows_of(*pairs: tuple[int, int | None]) -> list[dict[str, Any]]:
    return [{"order_id": order, "customer_id": customer} for order, customer in pairs]


class TestReferences:
    def test_rows_whose_key_is_not_in_the_table_go_to_quarantine(self, spark, tmp_path):
        played = orders(spark, tmp_path, on_failure="quarantine")
        customers(played, "(1L, 'north')", "(2L, 'south')", "(2L, 'east')", "(CAST(NULL AS LONG), 'none')")
        played.feed(rows_of((10, 1), (11, 3), (12, None), (13, 3), (14, 2), (15, 4), (16, 1)))
        ack, outcome = played.decide()
        verdict = ack.gates["known"]
        assert (outcome.state, verdict.outcome, verdict.rows, verdict.quarantined) == ("completed", "quarantine", 7, 3)
        (broken,) = verdict.broken
        assert (broken.rule, broken.rows) == ("missing", 3)
        assert broken.why == "3 rows have one of 2 keys that tables/customers lacks in version 0"
        kept = sorted(row["order_id"] for row in played.rows("tables/orders"))
        assert kept == [10, 12, 14, 16], "a null passes, as in SQL; a key that the table has twice counts once"
        aside = sorted((row["order_id"], row["_tidegate_rules"][0]) for row in played.rows(f"{QUARANTINE}/known"))
        assert aside == [(11, "missing"), (13, "missing"), (15, "missing")]

    def test_a_null_may_break_the_rule_too(self, spark, tmp_path):
        played = orders(spark, tmp_path, on_failure="quarantine", nulls="break")
        customers(played, "(1L, 'north')")
        played.feed(rows_of((10, 1), (11, 3), (12, None)))
        ack, _ = played.decide()
        assert [(each.rule, each.rows) for each in ack.gates["known"].broken] == [("missing", 1), ("null_key", 1)]
        assert [row["order_id"] for row in played.rows("tables/orders")] == [10]
        aside = {row["order_id"]: row["_tidegate_rules"] for row in played.rows(f"{QUARANTINE}/known")}
        assert aside == {11: ["missing"], 12: ["null_key"]}

    @pytest.mark.parametrize("policy", ["abort", "hold", "warn"])
    def test_other_policies_tell_the_same_numbers(self, spark, tmp_path, policy):
        played = orders(spark, tmp_path, on_failure=policy)
        customers(played, "(1L, 'north')")
        played.feed(rows_of((10, 1), (11, 3)))
        ack, outcome = played.decide()
        verdict = ack.gates["known"]
        assert (verdict.outcome, verdict.broken[0].rows) == (policy, 1)
        assert verdict.broken[0].why == "1 rows have a key that tables/customers lacks in version 0"
        if policy == "hold":
            assert outcome.reason == "HELD"
            answer(played.coordinator().ledger, 1, None, approve=False, quarantine=True, by="ann")
            assert played.coordinator().complete(1).reason == "GATE_QUARANTINED"
            ack, outcome = played.decide()
            assert [row["order_id"] for row in played.rows(f"{QUARANTINE}/known")] == [11], "not all that was held"
        kept = {"abort": [], "hold": [10], "warn": [10, 11]}
        assert sorted(row["order_id"] for row in played.rows("tables/orders")) == kept[policy]

    def test_several_columns_are_one_key(self, spark, tmp_path):
        def build(pipeline: Pipeline) -> None:
            rows = sources(pipeline, "n int, a long, b string")
            known = rows.gate(References(["a", "b"], to="tables/pairs", key=["x", "y"], on_failure="quarantine"))
            known.sink("kept", DeltaAppend("tables/kept"))

        played = SmallPipeline(tmp_path, spark, build)
        pairs = spark.sql("SELECT * FROM VALUES ('p', 1L, 0), ('q', 2L, 0) AS t(y, x, other)")
        pairs.write.format("delta").save(str(tmp_path / "tables/pairs"))
        played.feed(
            [
                {"n": 1, "a": 1, "b": "p"},
                {"n": 2, "a": 1, "b": "q"},
                {"n": 3, "a": 2, "b": "q"},
                {"n": 4, "a": 9},
                {"n": 5, "b": "z"},
            ]
        )
        played.decide()
        assert sorted(row["n"] for row in played.rows("tables/kept")) == [1, 3, 4, 5], "a null in one of them passes"

    def test_all_attempts_and_a_repeated_checkpoint_judge_by_the_planned_version(self, spark, tmp_path):
        played = orders(spark, tmp_path, on_failure="quarantine")
        customers(played, "(1L, 'north')")
        played.feed(rows_of((10, 1), (11, 2)))
        coordinator = played.coordinator()
        assert isinstance(coordinator.trigger("run 1"), Triggered)
        customers(played, "(2L, 'south')")  # after the plan
        run_job(coordinator, 1, "main", spark)
        coordinator.complete(1)
        coordinator.publish()
        assert played.ack(1).gates["known"].broken[0].rows == 1, "though the table has the key by now"
        played.feed(rows_of((12, 2), (13, 3)))
        ack, _ = played.decide()
        assert ack.gates["known"].broken[0].why.endswith("lacks in version 1")
        line = repeated(played, "recorded")
        difference = difference_of(line, "orders")
        assert (difference.rows_removed, difference.rows_added) == (0, 0), "11 is judged as it was then"
        discard(line, by="ann")
        (tmp_path / "tables/customers/_delta_log/00000000000000000000.json").unlink()
        for file in (tmp_path / "tables/customers").glob("*.parquet"):
            file.unlink()
        with pytest.raises(Rejected, match=r"gate 'known': version 0 of .*customers, which checkpoint 1 has looked up"):
            repeated(played, "recorded", "later")

    def test_a_table_that_is_gone_or_has_other_columns_is_refused_before_anything_is_planned(self, spark, tmp_path):
        played = orders(spark, tmp_path)
        played.feed(rows_of((10, 1)))
        for change, said in (
            (lambda: None, "gate 'known': no Delta table exists at"),
            (lambda: customers(played, "(1L, 'x')", columns="number, region"), "tables/customers has no column id"),
        ):
            change()
            with pytest.raises(Invalid, match=said):
                played.coordinator().trigger("run 1")
            assert played.coordinator().ledger.view().last_id == 0
        shutil.rmtree(tmp_path / "tables/customers")
        customers(played, "(1L, 'x')")
        assert played.decide()[1].state == "completed"
        shutil.rmtree(tmp_path / "tables/customers")
        with pytest.raises(Invalid, match="create the table first"):
            played.coordinator().trigger("run 2")

    def test_values_of_other_types_are_not_compared(self, spark, tmp_path):
        played = orders(spark, tmp_path)
        customers(played, "('1', 'north')")
        played.feed(rows_of((10, 1)))
        found = analyse(played.coordinator(), spark, None)
        said = "gate 'known': customer_id is int, but id of tables/customers is string"
        assert [error.what for error in found] == [said], "tidegate check finds it"
        with pytest.raises(Invalid, match=said):
            played.decide()
        customers(played, "(CAST(1 AS DECIMAL(20, 0)), 'north')", mode="overwrite")
        assert analyse(played.coordinator(), spark, None) == [], "whole numbers and decimals are numbers"

    def test_a_table_of_the_same_pipeline_is_the_one_before_the_checkpoint(self, spark, tmp_path):
        def build(pipeline: Pipeline) -> None:
            people = sources(pipeline, "id long, parent long", name="people")
            known = people.gate(
                References("parent", to="tables/people", key="id", on_failure="quarantine"), name="known"
            )
            known.sink("people", DeltaAppend("tables/people"))

        played = SmallPipeline(tmp_path, spark, build)
        spark.sql("SELECT 0L AS id, CAST(NULL AS LONG) AS parent").write.format("delta").save(
            str(tmp_path / "tables/people")
        )
        played.feed([{"id": 1, "parent": 0}, {"id": 2, "parent": 1}], "people")
        played.decide()
        assert [row["id"] for row in played.rows(f"{QUARANTINE}/known")] == [2], (
            "its parent is only in the same checkpoint"
        )
        played.feed([{"id": 3, "parent": 1}], "people")
        played.decide()
        assert sorted(row["id"] for row in played.rows("tables/people")) == [0, 1, 3]

    def test_what_is_wrong_with_its_declaration_is_told(self):
        pipeline = Pipeline("p")
        rows = sources(pipeline, "id long")
        gate = References([], to="", key=["a", "b"], nulls="no", on_failure="stop", at_most=2)  # type: ignore[arg-type]
        rows.gate(gate, name="bad").sink("s", DeltaAppend("t"))
        with pytest.raises(Invalid) as refused:
            pipeline.graph()
        for said in (
            "it has no key",
            "policy 'stop' for on_failure",
            "at_most is 2",
            "to: path is ''",
            "by and key have 0 and 2 names",
            "nulls is 'no'",
        ):
            assert f"gate 'bad': {said}" in refused.value.what


def unique(spark: Any, root: Path, source: dict[str, Any] | None = None, **options: Any) -> SmallPipeline:
    source = {"event_time": "at", "watermark": "1 hour"} if source is None else source
    options = {"over": "7 days", "on_failure": "quarantine", **options}

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, v long, at timestamp", **source)
        rows.gate(Unique("id", **options), name="once").sink("kept", DeltaAppend("tables/kept"))

    return SmallPipeline(root, spark, build)


def of(*rows: tuple[int | None, int | None, int]) -> list[dict[str, Any]]:
    """Rows: an id, a day of March, and a number that tells them apart."""
    return [{"id": id, "v": v, "at": f"2026-03-{day:02d}T12:00:00Z" if day else None} for id, day, v in rows]


def numbers(played: SmallPipeline, path: str = "tables/kept") -> list[int]:
    return sorted(row["v"] for row in played.rows(path))


class TestUnique:
    def test_a_key_may_occur_once_within_the_time_in_whichever_checkpoints(self, spark, tmp_path):
        played = unique(spark, tmp_path)
        played.feed(of((1, 1, 10), (2, 1, 20), (2, 3, 21), (None, 1, 30), (None, 1, 31), (3, None, 40)))
        ack, outcome = played.decide()
        verdict = ack.gates["once"]
        assert (outcome.state, verdict.outcome, verdict.rows, verdict.quarantined) == ("completed", "quarantine", 6, 2)
        assert [(each.rule, each.rows) for each in verdict.broken] == [("repeated", 1), ("without_time", 1)]
        assert verdict.broken[0].why == "1 rows have the key of an earlier one, less than 7 days before or after them"

        played.feed(of((1, 7, 11), (2, 8, 22), (4, 8, 50), (4, 8, 51), (4, 8, 51)))
        ack, _ = played.decide()
        assert ack.gates["once"].broken[0].rows == 3
        kept = numbers(played)
        assert kept[:5] == [10, 20, 22, 30, 31], "of id 2, seven days are over: the row in between did not pass"
        assert kept[5:] in ([50], [51]), "of equally old rows one passes"
        assert set(played.rows("tables/kept")[0]) == {"id", "v", "at"}, "the mark does not go on"
        aside = played.rows(f"{QUARANTINE}/once")
        assert "_tidegate_repeat" not in aside[0]
        assert sorted(row["v"] for row in aside) == sorted([11, 21, 40, *({50: [51, 51], 51: [50, 51]}[kept[5]])])

    def test_how_the_input_is_cut_does_not_matter(self, spark, tmp_path):
        rows = of(*((id, day, 100 * id + day) for day in range(1, 21) for id in (1, 2, 3) if (day * id) % 4 != 1))
        expected = None
        for name, cuts in (("one", [rows]), ("two", [rows[:11], rows[11:]]), ("many", [[row] for row in rows[:20]])):
            played = unique(spark, tmp_path / name, over="3 days")
            for cut in cuts:
                played.feed(cut)
                played.decide()
            if name == "many":
                played.feed(rows[20:])
                played.decide()
            expected = expected or numbers(played)
            assert numbers(played) == expected
        assert expected == first_by_first(rows, days=3)

    def test_late_rows_are_judged_like_others_until_the_keys_of_their_time_are_forgotten(self, spark, tmp_path):
        played = unique(spark, tmp_path, over="2 days")
        played.feed(of((1, 10, 10), (2, 10, 20)))
        played.decide()
        played.feed(of((9, 12, 90)))
        played.decide()
        late = of((1, 10, 11), (3, 10, 30), (4, 9, 40))  # the watermark is at 11:00 of day 12; day 9 is too early
        played.feed(late)
        ack, _ = played.decide()
        assert {each.rule: each.rows for each in ack.gates["once"].broken} == {"repeated": 1, "late": 1}
        assert numbers(played) == [10, 20, 30, 90]

    def test_state_forgets_keys_that_no_row_can_repeat_any_more(self, spark, tmp_path):
        played = unique(spark, tmp_path, over="2 days")
        for day in range(1, 15):
            played.feed(of((day, day, day)))
            played.checkpoint()
        newest: dict[int, bool] = {}
        for row in sorted(played.rows("ledger/play/state/once-repeats"), key=lambda row: row["_checkpoint"]):
            newest[row["id"]] = not row["_deleted"]
        living = [id for id, lives in newest.items() if lives]
        assert sorted(living) == [10, 11, 12, 13, 14], "twice the time before the watermark, 11:00 of day 14"
        assert numbers(played) == list(range(1, 15))

    @pytest.mark.parametrize("policy", ["abort", "hold", "warn"])
    def test_what_is_not_published_is_not_remembered(self, spark, tmp_path, policy):
        played = unique(spark, tmp_path, on_failure=policy)
        played.feed(of((1, 1, 10), (1, 1, 10), (2, 1, 20)))
        ack, outcome = played.decide()
        assert (ack.gates["once"].outcome, ack.gates["once"].broken[0].rows) == (policy, 1)
        if policy == "warn":
            assert numbers(played) == [10, 10, 20]
            return
        if policy == "abort":
            assert outcome.state == "aborted"
            (tmp_path / "landing/rows/000001.json").unlink()
            played.feed(of((1, 1, 10), (2, 1, 20)))
            played.coordinator().resume("ann")
        else:
            answer(played.coordinator().ledger, 1, None, approve=False, quarantine=True, by="ann")
            assert played.coordinator().complete(1).reason == "GATE_QUARANTINED"
        ack, outcome = played.decide()
        assert outcome.state == "completed"
        assert numbers(played) == [10, 20], "the rows of the aborted checkpoint are no repeats of themselves"

    @pytest.mark.parametrize("cuts", ["recorded", "own"])
    def test_a_backfill_comes_to_the_same(self, spark, tmp_path, cuts):
        played = unique(spark, tmp_path)
        for rows in (of((1, 1, 10), (2, 1, 20)), of((1, 3, 11), (2, 9, 21)), of((1, 10, 12), (2, 11, 22))):
            played.feed(rows)
            played.checkpoint()
        assert numbers(played) == [10, 12, 20, 21]
        difference = difference_of(repeated(played, cuts), "kept")
        assert (difference.rows_removed, difference.rows_added) == (0, 0)

    def test_after_a_rollback_it_has_the_keys_of_then(self, spark, tmp_path):
        played = unique(spark, tmp_path)
        for rows in (of((1, 1, 10)), of((2, 2, 20)), of((2, 3, 21), (1, 3, 11))):
            played.feed(rows)
            played.checkpoint()
        assert numbers(played) == [10, 20]
        played.coordinator().roll_back(1, run="back", by="ann")
        played.checkpoint()
        assert numbers(played) == [10, 20], "read again: the same row passes, and again is the first one"

    def test_names_of_operators_behind_it_do_not_change(self):
        with_gate, without = Pipeline("p"), Pipeline("p")
        for pipeline in (with_gate, without):
            rows = sources(pipeline, "id long, v long, at timestamp", event_time="at")
            if pipeline is with_gate:
                rows = rows.gate(Unique("id", over="7 days", on_failure="quarantine"))
            rows.aggregate(by="id", n="count(*)").sink("s", DeltaAppend("t", changelog=True))
        names = {stage.name for stage in with_gate.graph().operators}
        assert names == {"aggregate-rows-id", "rows-unique-id-repeats"}
        assert {stage.name for stage in without.graph().operators} == {"aggregate-rows-id"}

    def test_what_is_wrong_with_its_declaration_is_told(self):
        pipeline = Pipeline("p")
        rows = sources(pipeline, "id long, at timestamp")
        rows.gate(Unique("id", over="soon"), name="bad").sink("a", DeltaAppend("a"))
        totals = sources(pipeline, "id long, at timestamp", name="other", event_time="at").aggregate(
            by="id", n="max(at)"
        )
        totals.gate(Unique("id", over="1 day", event_time="n"), name="over").sink("b", DeltaAppend("b", changelog=True))
        with pytest.raises(Invalid) as refused:
            pipeline.graph()
        assert "gate 'bad': over='soon'" in refused.value.what
        assert "repeats 'bad-repeats'" in refused.value.what, "it has no event time"
        assert "repeats 'over-repeats'" in refused.value.what, "its input replaces rows"


def first_by_first(rows: list[dict[str, Any]], days: int) -> list[int]:
    """The numbers of the rows that pass, one by one in order of time."""
    last: dict[int, int] = {}
    passed = []
    for row in sorted(rows, key=lambda row: row["at"]):
        day = int(row["at"][8:10])
        if day - last.get(row["id"], -100) >= days:
            last[row["id"]] = day
            passed.append(row["v"])
    return sorted(passed)


class TestAnomaly:
    def test_checkpoints_that_are_not_like_those_before_are_told_group_by_group(self, spark, tmp_path):
        def build(pipeline: Pipeline) -> None:
            rows = sources(pipeline, "country string, amount double, at timestamp")
            gate = Anomaly("avg(amount)", by="country", season="day", event_time="at", after=12, on_failure="hold")
            counted = rows.gate(gate, name="usual").gate(Anomaly("count(*)", after=12), name="counted")
            counted.sink("kept", DeltaAppend("tables/kept"))

        def batch(hour: int, share: float = 1.0) -> list[dict[str, Any]]:
            at = f"2026-03-{1 + hour // 24:02d}T{hour % 24:02d}:30:00Z"
            means = {"DE": 50 * share + hour % 3, "FR": 9.0, None: 1.0}
            return [
                {"country": country, "amount": mean + part, "at": at}
                for country, mean in means.items()
                for part in (-0.5, 0.5)
            ]

        played = SmallPipeline(tmp_path, spark, build)
        hour = 0
        for _ in range(30):
            played.feed(batch(hour % 4 + 24 * (hour // 4)))
            ack, outcome = played.decide()
            assert outcome.state == "completed"
            hour += 1
        assert ack.gates["usual"].outcome == "pass"
        assert len(str(ack.memory["gate.usual"])) < 4000

        hour = 24 * (hour // 4)
        played.feed(batch(hour, share=0.2))
        ack, outcome = played.decide()
        assert (outcome.reason, ack.gates["usual"].outcome, ack.gates["counted"].outcome) == ("HELD", "hold", "pass")
        (broken,) = ack.gates["usual"].broken
        assert broken.why.startswith("avg(amount) of 1 of 3 groups is unusual; the farthest is 1")
        found = played.ledger.unpack(ack.gates["usual"].results)["groups"]
        assert [each["group"] for each in found if each["unusual"]] == [["DE"]]

        answer(played.coordinator().ledger, 31, None, approve=False, by="ann")
        assert played.coordinator().complete(31).state == "aborted"
        (tmp_path / f"landing/rows/{played.files:06d}.json").unlink()
        played.coordinator().resume("ann")
        played.feed(batch(hour))
        ack, outcome = played.decide()
        assert (outcome.state, ack.gates["usual"].outcome) == ("completed", "pass"), "what was rejected is not learned"

        before = played.ledger.unpack(ack.gates["usual"].results)
        line = repeated(played, "recorded")
        last = max(line.backfill.ledger.ids())
        again = line.backfill.ledger.ack(last, "main")
        assert again is not None
        assert line.backfill.ledger.unpack(again.ack.gates["usual"].results) == before, "it is judged alike"

    def test_rows_of_unusual_groups_are_told_from_others_whatever_their_values(self, spark):
        gate = Anomaly("avg(amount)", by=["country", "rate"], on_failure="quarantine")
        usual, memory = {'["DE","0.0"]': 50.0, '[null,"NaN"]': 50.0, '["FR","1.5"]': 50.0}, dict[str, Any]()
        for number in range(60):
            context = GateContext("p", "usual", Place("/"), clock="2026-03-02T00:00:00Z", memory=memory)
            values = {group: value + number % 3 for group, value in usual.items()}
            memory = gate.judge_values(values, dict.fromkeys(values, 2), {}, None, context).memory
        rows = spark.sql(
            "SELECT * FROM VALUES (1, 'DE', 0D, 9D), (2, 'DE', -0D, 9D), (3, NULL, double('NaN'), 9D), "
            "(4, 'FR', 1.5D, 51D), (5, 'AT', 0D, 9D) AS t(id, country, rate, amount)"
        )
        judgement = gate.judge(rows, GateContext("p", "usual", Place("/"), clock="2026-03-02T00:00:00Z", memory=memory))
        (broken,) = judgement.broken
        assert (broken.policy, broken.rows) == ("quarantine", 3)
        good, bad = judgement.split
        assert sorted(row["id"] for row in good.collect()) == [4, 5]
        told = {row["id"]: row[Judgement.RULES] for row in bad.collect()}
        assert told == {1: ["anomaly"], 2: ["anomaly"], 3: ["anomaly"]}

        only_below_zero = rows.where("id = 2 OR id = 4")
        judgement = gate.judge(
            only_below_zero, GateContext("p", "usual", Place("/"), clock="2026-03-02T00:00:00Z", memory=memory)
        )
        _, bad = judgement.split
        assert [row["id"] for row in bad.collect()] == [2]

    def test_a_checkpoint_without_rows_has_a_count(self, spark, tmp_path):
        def build(pipeline: Pipeline) -> None:
            rows = sources(pipeline, "v double")
            gate = rows.gate(Anomaly("count(*)", after=3), name="counted").gate(Anomaly("avg(v)", after=3), name="mean")
            gate.sink("kept", DeltaAppend("tables/kept"))

        played = SmallPipeline(tmp_path, spark, build)
        played.feed([{"v": 1.0}])
        played.decide()
        ack, outcome = played.decide()
        assert outcome.state == "completed"
        results = {name: played.ledger.unpack(ack.gates[name].results)["groups"] for name in ack.gates}
        assert [each["value"] for each in results["counted"]] == [0.0]
        assert [each["not_judged"] for each in results["mean"]] == ["it has no value"]

    @pytest.mark.parametrize(
        ("function", "by", "said"),
        [
            ("avg(nothing)", (), "'avg(nothing)' cannot be computed"),
            ("avg(v", (), "'avg(v' cannot be computed"),
            ("v", (), "'v' cannot be computed"),
            ("max(name)", (), "'max(name)' is a string"),
            ("count(*)", "country", "the rows have no column country"),
            ("explode(collect_list(v))", (), "'explode(collect_list(v))' cannot be computed: [UNSUPPORTED_GENERATOR"),
        ],
    )
    def test_what_cannot_be_computed_is_found_by_check_and_refused(self, spark, tmp_path, function, by, said):
        def build(pipeline: Pipeline) -> None:
            rows = sources(pipeline, "v double, name string")
            rows.gate(Anomaly(function, by=by), name="odd").sink("kept", DeltaAppend("tables/kept"))

        played = SmallPipeline(tmp_path, spark, build)
        played.feed([{"v": 1.0}])
        (error,) = analyse(played.coordinator(), spark, None)
        assert f"gate 'odd': {said}" in error.what
        with pytest.raises(Invalid) as refused:
            played.decide()
        assert said in refused.value.what

    def test_an_aggregate_that_differs_with_each_attempt_is_refused_where_it_is_declared(self):
        pipeline = Pipeline("p")
        rows = sources(pipeline, "v double")
        rows.gate(Anomaly("avg(v * rand())"), name="odd").sink("kept", DeltaAppend("tables/kept"))
        with pytest.raises(Invalid, match="gate 'odd': function is .* rand has another value each time"):
            pipeline.graph()

    def test_a_column_with_many_values_is_no_group(self, spark, tmp_path):
        def build(pipeline: Pipeline) -> None:
            rows = sources(pipeline, "v double").gate(Anomaly("count(*)", by="v"), name="many")
            rows.sink("kept", DeltaAppend("tables/kept"))

        played = SmallPipeline(tmp_path, spark, build)
        played.feed([{"v": number} for number in range(100_000)])
        with pytest.raises(Invalid, match="more than 50 groups by v") as refused:
            played.decide()
        assert "CASE WHEN" in refused.value.help
        assert played.rows("tables/kept") == []

    def test_what_is_no_number_is_told(self, spark, tmp_path):
        def build(pipeline: Pipeline) -> None:
            rows = sources(pipeline, "v double").select("v", "if(v > 5, double('nan'), v) AS w", name="odd")
            rows.gate(Anomaly("avg(w)", on_failure="abort"), name="odd_mean").sink("kept", DeltaAppend("tables/kept"))

        played = SmallPipeline(tmp_path, spark, build)
        played.feed([{"v": 1.0}, {"v": 6.0}])
        _, outcome = played.decide()
        assert (outcome.state, "avg(w) is nan, which is no number" in outcome.detail) == ("aborted", True)


def totals(spark: Any, root: Path, **options: Any) -> SmallPipeline:
    """Orders, and what was paid for them, in one checkpoint."""

    def build(pipeline: Pipeline) -> None:
        orders = sources(pipeline, "country string, amount decimal(12,2)", name="orders")
        paid = sources(pipeline, "land string, paid decimal(10,2)", name="paid")
        gate = Agrees("sum(amount)", to=paid, **{"other": "sum(paid)", **options})
        orders.gate(gate, name="balanced").sink("orders", DeltaAppend("tables/orders"))
        paid.sink("paid", DeltaAppend("tables/paid"))

    return SmallPipeline(root, spark, build)


class TestAgrees:
    def test_totals_of_two_streams_must_agree_and_are_told_with_their_difference(self, spark, tmp_path):
        played = totals(spark, tmp_path, tolerance=0.05)
        played.feed([{"country": "DE", "amount": "10.10"}, {"country": "FR", "amount": "5.00"}], "orders")
        played.feed([{"land": "DE", "paid": "15.05"}], "paid")
        ack, outcome = played.decide()
        assert (outcome.state, ack.gates["balanced"].outcome, ack.gates["balanced"].rows) == ("completed", "pass", 2)
        assert set(played.rows("tables/orders")[0]) == {"country", "amount"}, "the totals do not go on"
        assert len(played.rows("tables/orders")) == 2

        played.feed([{"country": "DE", "amount": "10.10"}], "orders")
        played.feed([{"land": "DE", "paid": "10.00"}, {"land": "DE", "paid": "0.04"}], "paid")
        ack, outcome = played.decide()
        assert (outcome.state, ack.gates["balanced"].outcome) == ("aborted", "abort")
        (broken,) = ack.gates["balanced"].broken
        assert broken.why == ("10.10 is sum(amount), and 10.04 is sum(paid) of paid: the difference is 0.06")
        assert (len(played.rows("tables/orders")), len(played.rows("tables/paid"))) == (2, 1), "neither is published"

        played.feed([{"land": "FR", "paid": "0.06"}], "paid")
        played.coordinator().resume("ann")
        _, outcome = played.decide()
        assert outcome.state == "completed", "what was missing has come, and the rows with it"
        assert len(played.rows("tables/orders")) == 3

    def test_a_checkpoint_without_rows_on_either_side_agrees(self, spark, tmp_path):
        played = totals(spark, tmp_path)
        played.feed([{"country": "DE", "amount": "1.00"}], "orders")
        played.feed([{"land": "DE", "paid": "1.00"}], "paid")
        played.decide()
        ack, outcome = played.decide()
        assert (outcome.state, ack.gates["balanced"].rows) == ("completed", 0)

    def test_rows_of_groups_that_do_not_agree_go_to_quarantine(self, spark, tmp_path):
        played = totals(spark, tmp_path, by="country", key="land", tolerance="1 %", on_failure="quarantine")
        amounts = {"DE": ["60.00", "40.00"], "FR": ["7.00", "1.00"], "IT": ["3.00"], None: ["2.00"]}
        played.feed([{"country": name, "amount": each} for name, all in amounts.items() for each in all], "orders")
        told = {"DE": "100.90", "FR": "9.00", "ES": "4.00", None: "2.00"}
        played.feed([{"land": land, "paid": paid} for land, paid in told.items()], "paid")
        ack, outcome = played.decide()
        verdict = ack.gates["balanced"]
        assert (outcome.state, verdict.outcome, verdict.rows, verdict.quarantined) == ("completed", "quarantine", 6, 3)
        broken = {rule.rule: rule for rule in verdict.broken}
        assert (broken["agrees"].rows, broken["agrees"].policy) == (3, "quarantine")
        assert broken["agrees"].why == (
            "3 of 5 groups disagree; of the one that differs most, 0.00 is sum(amount), and 4.00 is sum(paid) of paid: "
            "the difference is -4.00"
        )
        assert (broken["missing"].policy, broken["missing"].why) == ("warn", "1 groups of paid have no rows here")
        kept = [(row["country"], float(row["amount"])) for row in played.rows("tables/orders")]
        assert sorted(kept, key=str) == [("DE", 40.0), ("DE", 60.0), (None, 2.0)], "null is a group like others"
        aside = [(row["country"], row["_tidegate_rules"]) for row in played.rows(f"{QUARANTINE}/balanced")]
        assert sorted(aside) == [("FR", ["agrees"]), ("FR", ["agrees"]), ("IT", ["agrees"])]
        groups = played.ledger.unpack(verdict.results)["groups"]
        assert [each["group"] for each in groups] == [["ES"], ["IT"], ["FR"]]

    def test_a_person_may_quarantine_what_was_held(self, spark, tmp_path):
        played = totals(spark, tmp_path, on_failure="hold")
        played.feed([{"country": "DE", "amount": "1.00"}], "orders")
        played.feed([{"land": "DE", "paid": "2.00"}], "paid")
        assert played.decide()[1].reason == "HELD"
        answer(played.coordinator().ledger, 1, None, approve=False, quarantine=True, by="ann")
        played.coordinator().complete(1)
        ack, outcome = played.decide()
        assert (outcome.state, ack.gates["balanced"].quarantined) == ("completed", 1), "no row is to blame, so all are"

    def test_control_totals_in_a_table_are_compared_with_the_groups_that_are_here(self, spark, tmp_path):
        def build(pipeline: Pipeline) -> None:
            rows = sources(pipeline, "delivery int, v long")
            gate = Agrees(
                "count(*)",
                to="tables/deliveries",
                other="max(expected)",
                by="delivery",
                key="id",
                on_failure="quarantine",
            )
            rows.gate(gate, name="complete").sink("kept", DeltaAppend("tables/kept"))

        played = SmallPipeline(tmp_path, spark, build)
        control = spark.sql("SELECT * FROM VALUES (1L, 2), (2L, 3), (9L, 5) AS t(id, expected)")
        control.write.format("delta").save(str(tmp_path / "tables/deliveries"))
        played.feed([{"delivery": number, "v": v} for number, v in ((1, 1), (1, 2), (2, 3), (2, 4), (3, 5))])
        ack, _ = played.decide()
        verdict = ack.gates["complete"]
        assert (verdict.rows, verdict.quarantined) == (5, 3), "delivery 2 lacks a row, and nobody knows of 3"
        assert [rule.rule for rule in verdict.broken] == ["agrees"], "9 is not here yet, which is no fault"
        assert sorted(row["v"] for row in played.rows("tables/kept")) == [1, 2]
        assert played.coordinator().ledger.plan(1).fixed_inputs.keys() == {"complete"}

    def test_totals_are_compared_within_one_job_and_not_where_rows_replace_others(self):
        pipeline = Pipeline("p")
        rows = sources(pipeline, "id long, v long")
        other = sources(pipeline, "id long, v long", name="other")
        apart = other.job("elsewhere").deduplicate(by="id", uid="apart")
        mine = rows.deduplicate(by="id", uid="mine")
        mine.gate(Agrees("sum(v)", to=apart), name="a").sink("a", DeltaAppend("a"))
        apart.sink("c", DeltaAppend("c"))
        latest = other.latest(by="id", order_by="v", uid="latest")
        rows.gate(Agrees("sum(v)", to=latest), name="b").sink("b", DeltaAppend("b"))
        with pytest.raises(Invalid) as refused:
            pipeline.graph()
        said = "totals 'a-totals' compares mine with apart, but apart is of job 'elsewhere'"
        assert said in refused.value.what
        assert "totals 'b-totals' takes latest, which replaces rows" in refused.value.what

    def test_what_is_wrong_with_its_declaration_is_told(self, spark, tmp_path):
        pipeline = Pipeline("p")
        rows = sources(pipeline, "id long")
        gate: Any = Agrees("", to="tables/t", other=" ", key=["a", "b"], tolerance="some", on_failure="quarantine")
        rows.gate(gate, name="bad").sink("s", DeltaAppend("t"))
        with pytest.raises(Invalid) as refused:
            pipeline.graph()
        for said in (
            "function is ''",
            "other is ' '",
            "by and key have 0 and 2 names",
            "to is a table: name the columns in by=",
            "on_failure is 'quarantine', but without by=… no rows are to blame",
            "tolerance is 'some'",
        ):
            assert f"gate 'bad': {said}" in refused.value.what, said
        played = totals(spark, tmp_path, by="country", key="paid")
        played.feed([{"country": "DE", "amount": "1.00"}], "orders")
        played.feed([{"land": "DE", "paid": "1.00"}], "paid")
        with pytest.raises(Invalid, match=r"country is string, but country of paid is decimal\(10,2\)"):
            played.decide()

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"by": "country"}, "gate 'balanced': paid has no column country"),
            ({"other": "sum(nothing)"}, "gate 'balanced': other 'sum(nothing)' cannot be computed"),
            ({"other": "max(land)"}, "gate 'balanced': other 'max(land)' is a string"),
        ],
    )
    def test_what_is_wrong_with_the_other_stream_is_told_by_the_name_of_the_gate(self, spark, tmp_path, options, said):
        played = totals(spark, tmp_path, **options)
        played.feed([{"country": "DE", "amount": "1.00"}], "orders")
        played.feed([{"land": "DE", "paid": "1.00"}], "paid")
        with pytest.raises(Invalid) as refused:
            played.decide()
        assert said in refused.value.what

    def test_the_event_time_of_the_other_stream_is_not_that_of_the_rows(self):
        pipeline = Pipeline("p")
        rows = sources(pipeline, "id long, v long, at timestamp", event_time="at")
        control = sources(pipeline, "v long", name="control")
        balanced = rows.gate(Agrees("sum(v)", to=control), name="balanced")
        balanced.window(tumbling="1 hour", n="count(*)", uid="hours").sink("s", DeltaAppend("t"))
        assert {stage.name for stage in pipeline.graph().operators} == {"balanced-totals", "hours"}
