"""Expectations of a user's own: classes that extend those of Great Expectations, and queries. Bad rows go to quarantine
where a condition tells them; what is judged as a whole aborts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.cli.main import main
from tidegate.coordinator import Triggered
from tidegate.errors import Invalid
from tidegate.execution.job.run_job import run_job
from tidegate.gates import Expectations, GateContext
from tidegate.gates.expectations.custom import kinds_with
from tidegate.gates.expectations.suite import read_suite
from tidegate.gates.judging.judge import judge
from tidegate.records.place import Place
from tidegate.records.records import Verdict
from tidegate.sinks import DeltaAppend

pytestmark = in_turn(seconds=40)

MODULE = '''
import great_expectations.expectations as gxe
from great_expectations.execution_engine import PandasExecutionEngine, SparkDFExecutionEngine
from great_expectations.expectations.expectation import BatchExpectation, ColumnMapExpectation
from great_expectations.expectations.metrics import ColumnMapMetricProvider, column_condition_partial


class ExpectKnownCountry(gxe.ExpectColumnValuesToBeInSet):
    """A core expectation with its arguments filled in."""

    column: str = "country"
    value_set: list = ["AT", "DE"]


class ValuesAreEven(ColumnMapMetricProvider):
    condition_metric_name = "column_values.even_in_shop"

    @column_condition_partial(engine=SparkDFExecutionEngine)
    def _spark(cls, column, **kwargs):
        return column % 2 == 0


class ExpectColumnValuesToBeEvenInShop(ColumnMapExpectation):
    """An expectation with a condition of its own."""

    map_metric = "column_values.even_in_shop"


class ExpectNothingDear(gxe.UnexpectedRowsExpectation):
    """A query with its text filled in."""

    unexpected_rows_query: str = "select * from {batch} where v > 100"


class ExpectFewCountries(gxe.UnexpectedRowsExpectation):
    unexpected_rows_query: str = "select count(distinct country) n from {batch} having n > 3"
    description: str = "There are few countries"


class EvenForPandas(ColumnMapMetricProvider):
    condition_metric_name = "column_values.even_for_pandas"

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column, **kwargs):
        return column % 2 == 0


class ExpectColumnValuesToBeEvenForPandas(ColumnMapExpectation):
    map_metric = "column_values.even_for_pandas"


class ExpectFewRows(BatchExpectation):
    metric_dependencies = ("table.row_count",)
    most: int = 2

    def _validate(self, metrics, runtime_configuration=None, execution_engine=None):
        rows = metrics["table.row_count"]
        return {"success": 6 / rows > self.most, "result": {"observed_value": rows}}


class ExpectSumToBeSmall(gxe.ExpectColumnSumToBeBetween):
    column: str = "v"
    max_value: float = 1e9
'''
RULES = [
    {"type": "expect_known_country", "kwargs": {}},
    {"type": "expect_column_values_to_be_even_in_shop", "kwargs": {"column": "id", "mostly": 0.2}},
    {"type": "expect_nothing_dear", "kwargs": {}, "severity": "warning"},
    {"type": "expect_few_countries", "kwargs": {}},
    {"type": "expect_sum_to_be_small", "kwargs": {}},
]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"rules_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def write_suite(folder: Path, rules: list[dict[str, Any]]) -> None:
    path = folder / "include/expectations/shop.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": "shop", "expectations": rules}))


def checkpoint(root: Path, spark: Any, module: str, rows: list[dict[str, Any]], **options: Any) -> tuple[Verdict, Any]:
    def build(pipeline: Pipeline) -> None:
        stream = sources(pipeline, "id long, country string, v double")
        gate = Expectations("shop", modules=[module], **{"on_failure": "quarantine", **options})
        stream.gate(gate, name="checked").sink("kept", DeltaAppend("tables/kept"))

    played = SmallPipeline(root, spark, build)
    played.feed(rows)
    coordinator = played.coordinator()
    triggered = coordinator.trigger("run 1")
    assert isinstance(triggered, Triggered)
    ack = run_job(coordinator, triggered.plan.id, "main", spark)
    outcome = coordinator.complete(triggered.plan.id)
    coordinator.publish()
    verdict = ack.gates["checked"]
    return verdict, played if outcome.state == "completed" else outcome


def test_bad_rows_of_ones_own_expectations_go_to_quarantine_and_all_of_them(spark, tmp_path, module):
    write_suite(tmp_path, RULES)
    rows = [{"id": 2 * n, "country": "AT", "v": 1.0} for n in range(300)]
    rows += [{"id": 2 * n, "country": "XX", "v": 1.0} for n in range(300, 550)]
    rows += [{"id": 2 * n + 1, "country": "DE", "v": 200.0} for n in range(600, 900)]
    verdict, played = checkpoint(tmp_path, spark, module, rows)
    assert (verdict.outcome, verdict.quarantined) == ("quarantine", 550)
    assert [(each.rule, each.rows, each.severity) for each in verdict.broken] == [
        ("expect_known_country(country)", 250, "critical"),
        ("expect_nothing_dear()", 300, "warning"),
    ]
    assert verdict.broken[1].why == "300 rows break it"
    assert sorted(row["id"] for row in played.rows("tables/kept")) == [2 * n for n in range(300)]
    aside = played.rows("ledger/play/quarantine/checked")
    code = main(["docs", "gates", "play", "-D", f"root={tmp_path / 'ledger'}", "--into", str(tmp_path / "docs")])
    assert code == 0, "Data Docs know these expectations, too"
    [page] = (tmp_path / "docs").rglob("validations/shop/**/*.html")
    assert "There are few countries" in page.read_text()
    rules = {tuple(row["_tidegate_rules"]) for row in aside}
    assert rules == {("expect_known_country(country)",), ("expect_nothing_dear()",)}


def test_what_is_judged_as_a_whole_aborts_and_says_why(spark, tmp_path, module):
    write_suite(tmp_path, RULES[3:4])
    rows = [{"id": n, "country": country, "v": 1.0} for n, country in enumerate("abcd")]
    verdict, outcome = checkpoint(tmp_path, spark, module, rows)
    assert (verdict.outcome, outcome.state, outcome.reason) == ("abort", "aborted", "GATE_FAILED")
    assert [(each.rule, each.rows) for each in verdict.broken] == [("expect_few_countries()", None)]


def test_what_is_not_for_spark_is_refused_with_its_line_and_what_raises_fails_alone(spark, module):
    frame = spark.range(2)
    rules = [{"type": "expect_few_rows"}, {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 0}}]

    def judged(*rules: dict[str, Any], rows: int = 2) -> Any:
        text = json.dumps({"name": "shop", "expectations": rules}, indent=1)
        suite = read_suite(text, "shop.json", "shop", is_json=True, modules=[module])
        return judge(suite, frame.limit(rows), keeping=True).findings

    assert [each.success for each in judged(*rules)] == [True, False]
    few, count = judged(*rules, rows=0)
    assert few.result["exception_info"]["exception_message"] == "division by zero"
    assert (few.success, count.success) == (False, True)
    even = {"type": "expect_column_values_to_be_even_for_pandas", "kwargs": {"column": "id"}}
    with pytest.raises(
        Invalid, match=r"shop.json:7: expect_column_values_to_be_even_for_pandas cannot be judged: .*Spark"
    ):
        judged(rules[0], even)


def test_private_columns_are_not_told_even_if_a_class_names_them(spark, tmp_path, module):
    """By a default, or in a query, or in a condition that no one can look into."""
    rules = [*RULES[:3], {"type": "expect_sum_to_be_small", "kwargs": {"max_value": 1}}]
    text = json.dumps({"name": "shop", "expectations": rules})
    suite = read_suite(text, "shop.json", "shop", is_json=True, modules=[module])
    frame = spark.createDataFrame([(1, "secret", 12345.0)], "id long, country string, v double")
    shown = json.dumps(judge(suite, frame, keeping=True).record())
    assert "secret" in shown
    assert "12345" in shown
    for private in (["country", "v"], ["country", "v", "id"]):
        hidden = json.dumps(judge(suite, frame, private, keeping=True).record())
        assert "secret" not in hidden
        assert "12345" not in hidden


def test_the_types_are_known_without_importing_anything(tmp_path, module):
    loaded = set(sys.modules)
    kinds = kinds_with([module])
    assert module not in sys.modules
    assert "great_expectations" not in set(sys.modules) - loaded
    own = {name: kind for name, kind in kinds.items() if name not in kinds_with([])}
    assert {name: (kind.how.name, kind.arguments) for name, kind in own.items()} == {
        "expect_known_country": ("ROWS", ()),
        "expect_column_values_to_be_even_in_shop": ("ROWS", ("column",)),
        "expect_nothing_dear": ("THROUGH", ()),
        "expect_few_countries": ("THROUGH", ()),
        "expect_column_values_to_be_even_for_pandas": ("ROWS", ("column",)),
        "expect_few_rows": ("THROUGH", ()),
        "expect_sum_to_be_small": ("NUMBERS", ()),
    }


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ([{"type": "expect_known_contry"}], "did you mean 'expect_known_country'?"),
        ([{"type": "expect_known_country", "kwargs": {"values": [1]}}], "expect_known_country takes no 'values'"),
        ([{"type": "expect_column_values_to_be_even_in_shop"}], "lacks 'column'"),
    ],
)
def test_a_suite_of_ones_own_expectations_is_read_as_strictly(tmp_path, module, rules, told):
    write_suite(tmp_path, rules)
    with pytest.raises(Invalid) as refused:
        Expectations("shop", modules=[module]).check(GateContext("p", "g", Place(str(tmp_path))))
    assert told in refused.value.what


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("x = 1", "defines no expectation"),
        ("class A(", "line 1: "),
        ("import os\nclass ExpectA(gxe.ExpectColumnValuesToBeNull):\n    column: str = os.name", "is not written out"),
    ],
)
def test_a_module_that_cannot_be_read_is_told(tmp_path, module, source, told):
    (tmp_path / f"{module}.py").write_text(source)
    with pytest.raises(Invalid) as refused:
        kinds_with([module])
    assert told in refused.value.what
    with pytest.raises(Invalid, match="there is no module 'nowhere.at_all'"):
        kinds_with(["nowhere.at_all"])


def test_without_its_module_an_expectation_is_not_known(tmp_path, module):
    text = json.dumps({"name": "shop", "expectations": RULES[:1]})
    with pytest.raises(Invalid, match="expectation 'expect_known_country' is not known"):
        read_suite(text, "shop.json", "shop", is_json=True)
