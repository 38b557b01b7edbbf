"""A change of code is proposed: what it would do to the tables is seen before it is merged."""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from collections.abc import Iterator
from datetime import timedelta
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.kit.sampling import in_turn
from tests.views.shops import Said, Shops
from tidegate import offline, seams

pytestmark = in_turn(seconds=60)

CODE = """
from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("sales")
orders = pipeline.source("orders", Files("landing/sales/*.json", schema="id long, country string, amount double"))
priced = orders.select("id", "country", "amount * {factor} AS amount"{more}, where="id <> {without}")
good = priced.gate(Expectations("signs", on_failure="{policy}", private=["country"]), name="good")
good.sink("orders", DeltaUpsert("tables/orders", keys=["id"], schema_evolution="add"))
totals = good.aggregate(by="{by}", n="count(*)", total="sum(amount)", uid="totals")
totals.sink("totals", DeltaUpsert("tables/totals", keys=["{by}"], schema_evolution="add"))
"""
FIRST: dict[str, Any] = {"factor": "1", "more": "", "without": -1, "policy": "quarantine", "by": "country"}
SUITE = """
name: signs
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: amount, min_value: 0}, id: positive}
"""
DAYS = (
    [(1, "AT", 10.0), (2, "DE", 20.0), (3, "AT", 30.0)],
    [(4, "DE", 40.0), (5, "FR", -50.0), (6, "FR", 60.0)],
    [(7, "AT", 70.0), (2, "DE", 80.0)],
)
HIDDEN = ("/line-", "lines/", "proposal")


class Sales(Shops):
    """A project whose pipeline has its code in a file, which is changed as on a branch."""

    def write_code(self, **changes: Any) -> None:
        self.code |= changes
        (self.folder / "landing" / "sales").mkdir(parents=True, exist_ok=True)
        (self.folder / "include" / "expectations" / "signs.yaml").write_text(SUITE)
        (self.folder / "shop.py").write_text(CODE.format(**FIRST | self.code))
        sys.modules.pop("shop", None)
        importlib.invalidate_caches()

    def sell(self, rows: list[tuple[int, str, float]]) -> None:
        self.files += 1
        lines = [json.dumps({"id": id, "country": country, "amount": amount}) for id, country, amount in rows]
        (self.folder / "landing" / "sales" / f"{self.files:04d}.json").write_text("\n".join(lines) + "\n")

    def makes_checkpoint(self, options: str = "") -> None:
        said = self.run(f"run shop:pipeline --until-idle {options}")
        assert said.code == 0, said.text

    def proposes(self, options: str = "") -> dict[str, Any]:
        said = self.run(f"propose shop:pipeline --json {options}")
        report: dict[str, Any] = said.json
        return report | {"exit": said.code}

    def table(self, name: str) -> dict[Any, dict[str, Any]]:
        rows = DeltaTable(str(self.folder / "tables" / name)).to_pyarrow_table().to_pylist()
        key = "id" if name == "orders" else FIRST["by"]
        return {row[key]: row for row in rows}

    def traces(self) -> list[str]:
        """Whatever a proposal has left, without its tombstone."""
        paths = [str(path) for path in self.folder.rglob("*") if path.is_file()]
        return [p for p in paths if any(each in p for each in HIDDEN) and not p.endswith("discarded.json")]


@pytest.fixture
def sales(tmp_path: Path) -> Iterator[Sales]:
    made = Sales(tmp_path / "project")
    with made.entered():
        for day in DAYS:
            made.sell(day)
            made.makes_checkpoint()
        yield made


def test_a_refactoring_changes_nothing_and_leaves_nothing_behind(sales: Sales) -> None:
    versions = {name: DeltaTable(str(sales.folder / "tables" / name)).version() for name in ("orders", "totals")}
    sales.write_code(factor="(2 - 1)")
    report = sales.proposes("--fail-on rows --fail-on gate --fail-on schema")
    assert report["exit"] == 0
    assert report["merge"]["action"] == "continues"
    assert report["replayed"] == [1, 2, 3]
    assert report["code"]["before"] != report["code"]["after"]
    for table in report["tables"].values():
        assert (table["added"], table["removed"], table["changed"]) == (0, 0, 0)
    assert sales.traces() == []
    for name, version in versions.items():
        assert DeltaTable(str(sales.folder / "tables" / name)).version() == version


def test_a_bug_fix_is_told_by_key_column_and_amount(sales: Sales) -> None:
    sales.write_code(factor="CASE WHEN country = 'AT' THEN 2 ELSE 1 END")
    report = sales.proposes("--over 3 --examples 10 --fail-on 'rows > 50 %'")
    orders, totals = report["tables"]["orders"], report["tables"]["totals"]
    assert (orders["rows_before"], orders["added"], orders["removed"], orders["changed"]) == (6, 0, 0, 3)
    assert orders["columns"]["amount"]["rows"] == 3
    assert orders["columns"]["amount"]["greatest_change"] == 70.0
    assert (totals["keys"], totals["changed"]) == (["country"], 1)
    assert totals["columns"]["total"]["mean_change"] == 110.0
    assert [each["key"] for each in orders["examples"]] == [{"id": 1}, {"id": 3}, {"id": 7}]
    assert orders["examples"][0]["before"] == {"amount": 10.0}
    assert orders["examples"][0]["after"] == {"amount": 20.0}
    assert "AT" not in json.dumps(report["tables"]), "the gate keeps countries private"
    assert report["merge"]["action"] == "differs"
    assert report["merge"]["backfill"] == "tidegate backfill shop:pipeline --from beginning"
    assert report["exit"] == 0, "half of the rows may differ"
    assert sales.proposes("--fail-on 'rows > 2'")["exit"] == 1


def test_of_private_columns_only_counts_are_shown(sales: Sales) -> None:
    sales.write_code(factor="2")
    report = sales.proposes("--over 1 --examples 5 -D sample_hidden=amount")
    assert report["tables"]["orders"]["columns"]["amount"] == {
        "rows": 2, "mean_change": None, "greatest_change": None, "before": None, "after": None,
    }  # fmt: skip
    assert [set(each["before"]) for each in report["tables"]["orders"]["examples"]] == [set(), set()]


def test_a_new_column_and_a_gate_that_finds_more_are_told(sales: Sales) -> None:
    sales.write_code(more=', "upper(country) AS code"', factor="CASE WHEN id = 7 THEN -1 ELSE 1 END")
    report = sales.proposes("--over 1 --fail-on gate --fail-on schema")
    assert report["replayed"] == [3]
    assert report["tables"]["orders"]["schema"]["added"] == {"code": "string"}
    (gate,) = report["gates"]
    assert gate["before"]["broken"] == {}
    assert gate["after"]["broken"] == {"positive": 1}
    assert gate["after"]["quarantined"] == 1
    assert report["exit"] == 1
    assert [text.partition(":")[0] for text in report["broken_limits"]] == ["gate", "schema"]


def test_state_that_does_not_fit_is_computed_again_from_the_beginning(sales: Sales) -> None:
    sales.write_code(by="id")
    report = sales.proposes("--over 1")
    assert report["exit"] == 1, "the pipeline does not continue with it"
    assert report["merge"]["action"] == "refused"
    assert "aggregate 'totals': by is id, and was country" in report["merge"]["reasons"][0]
    assert report["code"]["operators"] == {"totals": ["by"]}
    assert (report["begins_after"], report["replayed"]) == (0, [1, 2, 3])
    assert report["tables"]["orders"]["changed"] == 0
    assert report["tables"]["totals"]["rows_after"] == 6


def test_state_that_somebody_has_edited_is_named_and_is_not_lost_by_a_swap(sales: Sales, spark: Any) -> None:
    sys.modules.pop("shop", None)
    pipeline = importlib.import_module("shop").pipeline
    offline.edit_state(pipeline, spark, "totals", lambda rows: rows.withColumn("total", rows.total + 100))
    sales.sell([(8, "AT", 5.0)])
    sales.makes_checkpoint()
    report = sales.proposes("--over 2")
    (edit,) = report["manual_edits"]
    assert "edited the state of operator 'totals'" in edit
    assert report["tables"]["totals"]["changed"] >= 1, "the replay has not repeated it"
    kept = sales.proposes("--over 2 --keep")
    assert kept["exit"] == 1
    assert "which no replay repeats" in kept["stopped"], "a swap would lose it"
    assert sales.traces() == []


def test_gates_hold_nobody_up_and_an_abort_is_told(sales: Sales) -> None:
    sales.write_code(policy="hold")
    report = sales.proposes("--fail-on gate")
    assert report["exit"] == 0
    assert report["gates"][0]["after"]["outcomes"] == {"pass": 2, "hold": 1}
    assert report["tables"]["orders"]["added"] == 1, "the held row counts, as if a person had approved it"
    sales.write_code(policy="abort")
    report = sales.proposes()
    assert report["exit"] == 1
    assert "GATE_FAILED" in report["stopped"]
    assert report["tables"] == {}
    assert sales.traces() == []


def test_the_pipeline_continues_beside_an_open_proposal(sales: Sales) -> None:
    sales.write_code(factor="3")
    assert sales.run("propose shop:pipeline --keep --into report.md").code == 0
    assert "6 of 6 rows of `orders`" in (sales.folder / "report.md").read_text()
    assert sales.traces() != []
    sales.write_code(factor="1")
    sales.sell([(8, "IT", 5.0)])
    sales.makes_checkpoint()
    assert sales.table("orders")[8]["amount"] == 5.0
    listed = sales.run("propose shop:pipeline --over 1")
    assert "Proposal proposal-1" in listed.text
    assert "was made by other code" in sales.run("backfill shop:pipeline --name proposal-1 --swap --yes").text
    assert sales.run("propose shop:pipeline --discard proposal-1").code == 0
    assert sales.traces() == []


def test_what_was_proposed_is_swapped_in_after_the_merge(sales: Sales) -> None:
    sales.write_code(factor="3")
    kept = sales.run("propose shop:pipeline --from beginning --keep")
    assert "After the merge:  tidegate propose accept shop:pipeline --name proposal-1" in kept.text
    sales.write_code(factor="1")
    sales.sell([(8, "IT", 5.0)])
    sales.makes_checkpoint()  # the pipeline has moved on
    sales.write_code(factor="3")
    refused = sales.run("propose accept shop:pipeline --yes --fail-on 'rows > 1 %'")
    assert refused.code == 1
    assert "has caught up, and is not swapped in" in refused.text
    assert sales.table("orders")[8]["amount"] == 5.0, "production is untouched"
    swapped = sales.run("propose accept shop:pipeline --if-proposed --yes")
    assert swapped.code == 0, swapped.text
    assert {id: row["amount"] for id, row in sales.table("orders").items()} == {
        1: 30.0, 2: 240.0, 3: 90.0, 4: 120.0, 6: 180.0, 7: 210.0, 8: 15.0,
    }  # fmt: skip
    assert sales.table("totals")["AT"]["total"] == 330.0
    report = sales.proposes("--over 1")
    assert (report["begins_after"], report["replayed"]) == (0, [1, 2, 3, 4]), "the swap has replaced what was at 3"
    assert (report["stopped"], report["merge"]["action"]) == ("", "same")
    sales.sell([(9, "IT", 1.0)])
    sales.makes_checkpoint()
    assert sales.table("totals")["IT"]["total"] == 18.0


def test_what_is_accepted_and_changes_nothing_ends_without_a_swap(sales: Sales) -> None:
    sales.write_code(factor="(2 - 1)")
    sales.proposes("--over 2 --keep")
    sales.write_code(factor="1")
    sales.sell([(8, "IT", 5.0)])
    sales.makes_checkpoint()
    assert "made by other code" in sales.run("propose accept shop:pipeline --yes").text
    assert "nothing to accept" in sales.run("propose accept shop:pipeline --if-proposed --yes").text
    sales.write_code(factor="(2 - 1)")
    versions = {name: DeltaTable(str(sales.folder / "tables" / name)).version() for name in ("orders", "totals")}
    accepted = sales.run("propose accept shop:pipeline")
    assert (accepted.code, "Nothing differs" in accepted.text) == (0, True), accepted.text
    assert sales.traces() == []
    for name, version in versions.items():
        assert DeltaTable(str(sales.folder / "tables" / name)).version() == version
    over = sales.run("propose accept shop:pipeline --name proposal-1")
    assert (over.code, "proposal-1 is over" in over.text) == (0, True)
    again = sales.run("propose accept shop:pipeline")
    assert (again.code, "has no proposal" in again.text) == (2, True)


def test_a_report_tells_what_has_changed_since_the_last_push(sales: Sales) -> None:
    assert "has no report of a proposal 'LAST'" in sales.run("propose shop:pipeline --compare-with LAST").text
    sales.write_code(factor="2")
    first = sales.proposes("--over 2 --keep")
    assert first["since"] is None
    same = sales.proposes("--over 2 --compare-with LAST")["since"]
    assert (same["proposal"], same["same_code"], same["same_checkpoints"]) == ("proposal-1", True, True)
    assert (same["merge"], same["tables"], same["gates"]) == ([], {}, [])
    sales.write_code(factor="1", without=7)
    changed = sales.proposes("--over 2 --keep --compare-with proposal-1")["since"]
    assert changed["same_code"] is False
    assert changed["tables"]["orders"] == {"rows_after": [6, 5], "removed": [0, 1], "changed": [4, 0]}
    text = sales.run("propose shop:pipeline --over 1 --compare-with LAST").text
    assert "### Since `proposal-3`" in text
    assert "Other checkpoints were replayed than then" in text
    for name in ("proposal-1", "proposal-3"):
        assert sales.run(f"propose shop:pipeline --discard {name}").code == 0
    assert sales.traces() == []


def test_the_next_push_replays_only_tables_whose_path_has_changed(sales: Sales) -> None:
    sales.write_code(factor="2")
    first = sales.proposes("--label pr-1")
    assert (first["carried"], first["since"]) == ([], None)
    sales.sell([(8, "AT", 5.0)])
    sales.write_code(factor="1")
    sales.makes_checkpoint("-D num_retained=10")
    sales.write_code(factor="2")
    again = sales.proposes("--label pr-1")
    assert again["carried"] == ["orders", "totals"]
    assert again["replayed"] == first["replayed"] == [1, 2, 3], "the same checkpoints, though there is one more"
    assert (again["tables"], again["merge"]["action"], again["since"]["same_code"]) == (
        first["tables"],
        "differs",
        True,
    )
    text = sales.run("propose shop:pipeline --label pr-1").text
    assert "Nothing was replayed again" in text
    sales.write_code(by="id")
    part, whole = sales.proposes("--label pr-1"), sales.proposes("--to 3")
    assert part["carried"] == ["orders"], "only the path of totals has changed"
    assert part["tables"] == whole["tables"]
    assert [part[each] for each in ("merge", "code", "gates", "replayed", "stopped")] == [
        whole[each] for each in ("merge", "code", "gates", "replayed", "stopped")
    ]
    assert sales.proposes("--label pr-1 --over 2")["carried"] == [], "other checkpoints were asked for"
    assert sales.proposes("--label pr-2")["carried"] == [], "that is another pull request"
    suite = sales.folder / "include" / "expectations" / "signs.yaml"
    suite.write_text(suite.read_text().replace("min_value: 0", "min_value: 15"))
    assert sales.proposes("--label pr-2")["carried"] == [], "the rows of both tables pass the gate"
    assert sales.traces() == []


def test_after_a_rollback_the_next_push_replays_everything(sales: Sales) -> None:
    sales.write_code(factor="2")
    assert sales.proposes("--label pr-1 --to 2")["replayed"] == [1, 2]
    sales.write_code(factor="1")
    assert sales.run("rollback shop:pipeline --to 1 --yes").code == 0
    sales.makes_checkpoint()
    sales.write_code(factor="2")
    assert sales.proposes("--label pr-1 --to 2")["carried"] == []
    assert "label name 'PR 1' is not allowed" in sales.run("propose shop:pipeline --label 'PR 1'").text


def test_what_cannot_be_proposed_is_refused_with_a_way_out(sales: Sales) -> None:
    assert "expected: rows" in sales.run("propose shop:pipeline --fail-on 'rows < 3'").text.lower()
    assert "no file can be written there" in sales.run("propose shop:pipeline --into nowhere/report.md").text
    assert "has no checkpoint after 3" in sales.run("propose shop:pipeline --from 3").text
    refused: Said = sales.run("propose shop:pipeline --discard nothing")
    assert refused.code == 2


@pytest.mark.parametrize("seed", [1, 2])
def test_what_differs_in_the_report_is_exactly_what_differs_after_the_merge(sales: Sales, seed: int) -> None:
    dice = random.Random(seed)
    before = {name: sales.table(name) for name in ("orders", "totals")}
    sales.write_code(
        factor=dice.choice(["1", "2", "round(amount / 50) ", "CASE WHEN id % 2 = 0 THEN 1.5 ELSE 1 END"]),
        without=dice.choice([-1, 1, 4, 7]),
    )
    report = sales.proposes("--from beginning")
    swapped = sales.run("backfill shop:pipeline --from beginning --cuts recorded --swap --yes")
    assert swapped.code == 0, swapped.text
    for name, old in before.items():
        new = sales.table(name)
        told = report["tables"][name]
        assert told["added"] == len(new.keys() - old.keys())
        assert told["removed"] == len(old.keys() - new.keys())
        changed = [key for key in old.keys() & new.keys() if old[key] != new[key]]
        assert told["changed"] == len(changed)
        by_column = {column: sum(old[key][column] != new[key][column] for key in changed) for column in told["columns"]}
        assert {column: change["rows"] for column, change in told["columns"].items()} == by_column


def test_code_whose_output_does_not_fit_a_table_is_told_in_the_report(sales: Sales) -> None:
    sales.write_code(factor="true AND")
    report = sales.proposes()
    assert report["exit"] == 1
    assert report["merge"]["action"] == "refused"
    assert "[DATATYPE_MISMATCH" in report["merge"]["reasons"][0]
    assert report["stopped"] != ""
    sales.write_code(factor="1", more=', "raise_error(country) AS code"')
    report = sales.proposes()
    assert (report["exit"], report["merge"]["action"]) == (1, "refused")
    assert "column 'code' has the type void" in report["merge"]["reasons"][0]
    sales.write_code(more=', "id AS extra"')
    code = (sales.folder / "shop.py").read_text()
    (sales.folder / "shop.py").write_text(code.replace(', schema_evolution="add"', ""))
    report = sales.proposes()
    assert f"does not fit {sales.folder}/tables/orders:\n    'extra' (bigint) is not in the" in report["stopped"]
    assert 'schema_evolution="add"' in report["merge"]["reasons"][0]
    assert (report["gates"], report["figures"]) == ([], {}), "no checkpoint was replayed"
    assert "/line-" not in json.dumps(report), "nobody looks for a hidden table that is gone"
    assert sales.traces() == []


def test_a_sink_with_another_table_and_input_that_is_gone_are_told_without_a_replay(sales: Sales) -> None:
    code = (sales.folder / "shop.py").read_text()
    (sales.folder / "shop.py").write_text(code.replace("tables/orders", "tables/others"))
    sys.modules.pop("shop", None)
    report = sales.proposes()
    assert (report["exit"], report["replayed"], report["merge"]["action"]) == (1, [], "refused")
    assert "sink 'orders' has published to" in report["stopped"]
    assert report["merge"]["backfill"] == ""
    sales.write_code(factor="2")
    (sales.folder / "landing" / "sales" / "0003.json").unlink()
    report = sales.proposes()
    assert "no longer in" in report["stopped"]
    assert (report["exit"], report["merge"]["backfill"]) == (1, ""), "no backfill could read it"
    assert sales.traces() == []


def test_a_range_may_begin_at_the_beginning_and_end_before_the_last_checkpoint(sales: Sales) -> None:
    sales.write_code(factor="2")
    for options, replayed, rows in (
        ("--to 1", [1], 3),
        ("--from beginning --to 2", [1, 2], 5),
        ("--to 3", [1, 2, 3], 6),
    ):
        report = sales.proposes(options)
        assert report["replayed"] == replayed
        assert report["tables"]["orders"]["rows_before"] == rows
        assert report["tables"]["orders"]["changed"] == rows
    refused = sales.run("propose shop:pipeline --over 1 --from 1")
    assert (refused.code, "not allowed with argument" in refused.text) == (2, True)


def test_columns_may_be_called_as_in_our_own_queries_and_hold_anything(sales: Sales) -> None:
    named = ', "amount AS more", "amount AS sign", "country AS side", "id AS times"'
    sales.write_code(more=named + ', "map(country, amount) AS m", "array(id) AS `a|b`"')
    sales.sell([(8, "IT", 5.0)])
    sales.makes_checkpoint()
    sales.write_code(factor="CASE WHEN id = 8 THEN CAST('NaN' AS double) ELSE 1 END")
    said = sales.run("propose shop:pipeline --over 1 --examples 5 --json")
    report = json.loads(said.text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert report["tables"]["orders"]["changed"] == 1
    assert report["tables"]["orders"]["columns"]["amount"]["mean_change"] is None
    assert report["tables"]["orders"]["examples"][0]["after"] == {"amount": "nan"}
    assert sales.run("backfill shop:pipeline --from 3").code == 0
    told = sales.run("backfill shop:pipeline --diff orders --json").json["rows"]
    assert [row["_tidegate_side"] for row in told] == ["now", "after"]
    assert [row["side"] for row in told] == ["IT", "IT"]


def test_what_nobody_works_on_expires_and_production_removes_it(sales: Sales, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (sales.folder / "shop.py").read_text()
    more = """
last = good.latest(by="id", order_by="amount", uid="last")
last.sink("last", DeltaUpsert("tables/last", keys=["id"]))
good.sink("copies", DeltaAppend("tables/copies"))
"""
    (sales.folder / "shop.py").write_text(code + more)
    sys.modules.pop("shop", None)
    kept = sales.proposes("--over 2 --keep")
    assert kept["stopped"] == ""
    assert kept["tables"]["copies"]["rows_after"] > 0
    sales.write_code()
    listed = sales.run("propose list shop:pipeline --json").json["proposals"]
    assert [(each["name"], each["merge"]) for each in listed] == [("proposal-1", "differs")]
    assert 13 * 86400 < listed[0]["expires_in_seconds"] <= 14 * 86400
    endless = sales.run("propose list shop:pipeline -D proposal_ttl=never --json").json["proposals"]
    assert endless[0]["expires_in_seconds"] is None
    sales.makes_checkpoint()
    assert sales.traces() != [], "it is young"
    for path in (sales.folder / "ledger").rglob("*"):
        if "lines" in path.parts and path.is_file():
            os.utime(path, (path.stat().st_mtime - 15 * 86400,) * 2)
    assert "15 d " in sales.run("propose list shop:pipeline").text
    sales.sell([(8, "IT", 5.0)])
    later = seams.now() + timedelta(days=15)
    with monkeypatch.context() as patch:
        patch.setattr(sales, "now", lambda: later)
        sales.makes_checkpoint()
    assert sales.traces() == [], "with production's code, which has fewer tables"
    assert "has no proposal" in sales.run("propose list shop:pipeline").text
    assert "has expired" in sales.run("propose accept shop:pipeline --name proposal-1").text
    assert sales.table("orders")[8]["amount"] == 5.0


LINES = """
from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("lines")
lines = pipeline.source("lines", Files("landing/sales/*.json", schema="id long, country string, amount double"))
priced = lines.select("id", "country", "amount * {factor} AS amount")
good = priced.gate(Expectations("signs", on_failure="quarantine"), name="good")
good.sink("lines", DeltaAppend("tables/lines"))
totals = good.aggregate(by="country", n="count(*)", total="sum(amount)", uid="totals")
totals.sink("totals", DeltaUpsert("tables/sums", keys=["country"]))
"""


def test_a_sample_by_key_differs_exactly_where_the_whole_does_for_its_keys(sales: Sales) -> None:
    refused = sales.run("propose shop:pipeline --sample 0.5 by key")
    assert refused.code == 1
    assert "sink 'orders' has a row for each id, whichever 'country' it had before" in refused.text
    by_id = sales.run("propose shop:pipeline --sample 0.5 by id")
    assert "aggregate 'totals' works by country, not by 'id'" in by_id.text

    def lines(words: str, factor: str) -> Said:
        (sales.folder / "lines.py").write_text(LINES.format(factor=factor))
        sys.modules.pop("lines", None)
        importlib.invalidate_caches()
        return sales.run(words)

    dice = random.Random(7)
    countries = [f"c{number}" for number in range(40)]
    for _ in range(3):
        sales.sell([(number, dice.choice(countries), float(dice.randrange(1, 90))) for number in range(60)])
        assert lines("run lines:pipeline --until-idle", "1").code == 0
    changed = "CASE WHEN id % 2 = 0 THEN 3 ELSE 1 END"
    whole = lines("propose lines:pipeline --over 2 --examples 500 --json", changed).json
    part = lines("propose lines:pipeline --over 2 --examples 500 --json --sample 0.3 by key --keep", changed).json
    again = lines("propose lines:pipeline --over 2 --examples 500 --json --sample 0.3 by country", changed).json
    assert part["sample"] == {"share": 0.3, "by": "country", "sources": {"lines": "country"}}
    assert part["tables"] == again["tables"], "the hash decides, not chance"
    assert (part["gates"], part["figures"]) == ([], {}), "a sample tells nothing about these"
    sampled = {country for country in countries if md5(country.encode()).hexdigest()[:8] < f"{round(0.3 * 16**8):08x}"}
    assert 3 < len(sampled) < 30
    for name in ("lines", "totals"):
        told = [each for each in whole["tables"][name]["examples"] if country_of(each) in sampled]
        assert told, "some rows differ"
        assert part["tables"][name]["examples"] == told
        assert part["tables"][name]["rows_before"] < whole["tables"][name]["rows_before"]
    accepted = lines("propose accept lines:pipeline --yes", changed)
    assert (accepted.code, "has read only 0.3 of the keys" in accepted.text) == (1, True), accepted.text
    swapped = lines("backfill lines:pipeline --name proposal-2 --swap --yes", changed)
    assert swapped.code == 1
    assert "only a sample of the input" in swapped.text
    text = lines("propose lines:pipeline --over 1 --sample 0.3 by country", changed).text
    assert "**A sample**: 30 % of the values of `country`" in text
    assert "--fail-on 'gate'" in lines("propose lines:pipeline --sample 0.3 by key --fail-on gate", changed).text


def country_of(example: dict[str, Any]) -> str:
    """The value of `country` in an example, which is in its key, or in one of its sides."""
    sides = [example["key"], example.get("before") or {}, example.get("after") or {}]
    return str(next(side["country"] for side in sides if "country" in side))
