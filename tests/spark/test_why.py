"""Stories of `tidegate why`: somebody asks for the causes of a row."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from tests.kit.sampling import in_turn
from tests.views.shops import Said, Shops
from tidegate.ledger import Ledger

pytestmark = in_turn(seconds=60)

CODE = """
from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("sales")
orders = pipeline.source("orders", Files("landing/sales/*.json", schema="id long, country string, amount double"))
good = orders.gate(Expectations("signs", on_failure="quarantine", private=["note"]), name="good")
good.select("id AS number", "amount * {factor} AS amount", name="priced").sink("prices", DeltaAppend("tables/prices"))
totals = good.aggregate(by="country", n="count(*)", total="sum(amount * {factor})", uid="totals")
totals.sink("totals", DeltaUpsert("tables/totals", keys=["country"]))
"""
SUITE = """
name: signs
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: amount, min_value: 0}, id: positive}
"""
DAYS = (
    [(1, "AT", 10.0), (2, "DE", 20.0), (3, "AT", 30.0)],
    [(4, "DE", 40.0), (5, "FR", -50.0), (6, "FR", 60.0)],
    [(7, "AT", 70.0), (8, "DE", 80.0)],
)


class Sales(Shops):
    """A project whose pipeline has its code in a file."""

    def write_code(self, **changes: Any) -> None:
        self.code |= changes
        (self.folder / "landing" / "sales").mkdir(parents=True, exist_ok=True)
        (self.folder / "include" / "expectations" / "signs.yaml").write_text(SUITE)
        (self.folder / "shop.py").write_text(CODE.format(**{"factor": "1"} | self.code))
        sys.modules.pop("shop", None)
        importlib.invalidate_caches()

    def sell(self, rows: list[tuple[int, str, float]], options: str = "") -> None:
        self.files += 1
        lines = [json.dumps({"id": id, "country": country, "amount": amount}) for id, country, amount in rows]
        (self.folder / "landing" / "sales" / f"{self.files:04d}.json").write_text("\n".join(lines) + "\n")
        said = self.run(f"run shop:pipeline --until-idle {options}")
        assert said.code == 0, said.text

    def why(self, words: str) -> dict[str, Any]:
        said = self.run(f"why shop:pipeline {words} --json")
        answer: dict[str, Any] = said.json
        assert "error" not in answer, said.text
        return answer | {"exit": said.code}

    def everything(self) -> set[str]:
        """All files of the project."""
        return {str(path) for path in self.folder.rglob("*") if path.is_file() and "__pycache__" not in str(path)}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sales]:
    """The project after three days, for all stories."""
    made = Sales(tmp_path_factory.mktemp("why") / "project")
    with made.entered():
        for day in DAYS:
            made.sell(day)
        yield made


@pytest.fixture
def sales(played: Sales) -> Iterator[Sales]:
    with played.copied():
        yield played


def ids(answer: dict[str, Any]) -> list[int]:
    return [record["values"]["id"] for record in answer["records"]]


def test_a_sum_comes_from_its_records_by_file_and_number_and_nothing_is_written(sales: Sales) -> None:
    before = sales.everything()
    said: Said = sales.run("why shop:pipeline totals \"country = 'AT'\"")
    assert said.code == 0, said.text
    assert "sales, totals as of checkpoint 3: country=AT, n=3, total=110.0" in said.text
    assert "It is so since checkpoint 3, because of 3 records of 2 checkpoints." in said.text
    assert "source orders (record 1 of landing/sales/0001.json): id=1, country=AT, amount=10.0" in said.text
    assert "source orders (record 3 of landing/sales/0001.json): id=3, country=AT, amount=30.0" in said.text
    assert "source orders (record 1 of landing/sales/0003.json): id=7, country=AT, amount=70.0" in said.text
    assert "then state totals: country=AT, n=2, total=40.0" in said.text
    assert "totals ← good: aggregate country" in said.text
    assert "From these alone the row is the same" in said.text
    assert "Without any one of them it is another row, or none." in said.text
    assert sales.everything() == before


def test_a_row_is_as_old_as_its_last_change_and_its_columns_may_have_other_names(sales: Sales) -> None:
    answer = sales.why('prices "number = 4"')
    assert (answer["checkpoint"], answer["since"]) == (3, 2)
    assert ids(answer) == [4]
    assert answer["candidates"] == 1, "the name of its key is followed to the source"
    assert answer["row"] == {"number": 4, "amount": 40.0}
    as_of_2 = sales.why("totals \"country = 'DE'\" --checkpoint 2")
    assert (as_of_2["row"]["total"], ids(as_of_2)) == (60.0, [2, 4])
    assert [(each["id"], each["row"]["n"]) for each in as_of_2["checkpoints"]] == [(1, 1), (2, 2)]


def test_a_corrected_row_names_its_correction_and_who_asked_for_it(sales: Sales) -> None:
    assert ids(sales.why("totals \"country = 'FR'\"")) == [6], "the other one waits in quarantine"
    assert sales.run("quarantine release sales good --all --set 'amount = -amount' --yes --note typing").code == 0
    sales.sell([(9, "IT", 1.0)], "-D num_retained=10")
    answer = sales.why("totals \"country = 'FR'\"")
    assert answer["row"]["total"] == 110.0
    assert ids(answer) == [5, 6]
    (correction,) = answer["corrections"]
    assert (correction["checkpoint"], correction["gate"], correction["is_proven"]) == (4, "good", True)
    assert "request 1 by" in correction["requests"][0]
    assert "with amount corrected" in correction["requests"][0]
    assert answer["unproven"] == 0
    shorter = sales.run("why shop:pipeline totals \"country = 'FR'\" --over 2")
    assert "checkpoint 4 has released rows from quarantine, perhaps from before checkpoint 2" in shorter.text


def test_older_input_is_told_as_the_state_that_it_left(sales: Sales) -> None:
    before = sales.everything()
    with mock.patch.object(Ledger, "create_pin", side_effect=AssertionError("the pipeline is only read")):
        answer = sales.why("totals \"country = 'DE'\" --over 1")
    assert sales.everything() == before
    assert ids(answer) == [8]
    assert (answer["begins_after"], answer["needs_older_state"]) == (2, True)
    assert answer["why_older"] == "only the last 1 checkpoints were asked about"
    only_new = sales.why('prices "number = 7" --over 1')
    assert (ids(only_new), only_new["needs_older_state"]) == ([7], False)
    too_old = sales.run("why shop:pipeline totals \"country = 'FR'\" --over 1")
    assert too_old.code == 1
    assert "has this row since checkpoint 2" in too_old.text


def test_input_that_retention_took_is_told(sales: Sales) -> None:
    sales.run("run shop:pipeline --checkpoints 3")
    said = sales.run("why shop:pipeline totals \"country = 'AT'\"")
    assert said.code == 1
    assert "or earlier, whose input cannot be replayed" in said.text
    assert "not retained" in said.text
    sales.sell([(10, "AT", 1.0)])
    answer = sales.why("totals \"country = 'AT'\"")
    assert ids(answer) == [10]
    assert answer["needs_older_state"]
    assert "not retained" in answer["why_older"]


def test_private_columns_are_not_shown(sales: Sales) -> None:
    said = sales.run("why shop:pipeline totals \"country = 'AT'\" -D sample_hidden=country --json")
    assert ids(said.json) == [1, 3, 7]
    assert "AT" not in said.out
    assert said.json["row"] == {"n": 3, "total": 110.0}


def test_a_limit_says_what_it_left_open(sales: Sales) -> None:
    said = sales.run("why shop:pipeline totals \"country = 'AT'\" --replays 2 --json")
    assert said.code == 1
    assert ids(said.json) == [1, 3, 7]
    assert [record["is_proven"] for record in said.json["records"]] == [True, False, False]
    assert said.json["unproven"] == 2
    many = sales.run("why shop:pipeline totals \"country = 'AT'\" --candidates 2")
    assert "more than 2 records may have led to this row" in many.text


def test_what_cannot_be_asked_is_refused_with_a_way_out(sales: Sales) -> None:
    for words, text in (
        ('totals "nothing = 1"', "is no condition on the rows of 'totals'"),
        ('totals "country ="', "is no condition on the rows of 'totals'"),
        ("totals \"country = 'XX'\"", "no row of 'totals' fulfils"),
        ('totals "n > 0"', "3 different rows of 'totals' fulfil"),
        ('nothing "n > 0"', "nothing"),
        ('totals "n > 0" --checkpoint 9', "9"),
    ):
        said = sales.run(f"why shop:pipeline {words}")
        assert said.code in (1, 2), said.text
        assert text in said.text
        assert not said.is_unforeseen, said.text
    assert "name its key: country" in sales.run('why shop:pipeline totals "n > 0"').text


def test_other_code_is_told_whether_the_row_is_the_same_with_it_or_not(sales: Sales) -> None:
    sales.write_code(factor="(2 - 1)")
    answer = sales.why("totals \"country = 'AT'\"")
    assert (ids(answer), answer["other_code"]) == ([1, 3, 7], True)
    sales.write_code(factor="2")
    said = sales.run("why shop:pipeline totals \"country = 'AT'\"")
    assert said.code == 1
    assert "does not give this row" in said.text
    assert "checkpoint 3 was made by other code" in said.text


def test_input_that_is_gone_is_named(sales: Sales) -> None:
    (sales.folder / "landing" / "sales" / "0001.json").unlink()
    said = sales.run("why shop:pipeline totals \"country = 'AT'\"")
    assert said.code in (1, 2)
    assert "0001.json" in said.text
    assert ids(sales.why('prices "number = 7" --over 1')) == [7]
