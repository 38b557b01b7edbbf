"""A project that was made with Great Expectations' own commands is a gate, unchanged; what the gate found can be had as
its own validation results and Data Docs."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.s3 import s3
from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.checkpoint.approvals import answer
from tidegate.cli.main import main
from tidegate.coordinator import Triggered
from tidegate.execution.job.run_job import run_job
from tidegate.gates import Expectations
from tidegate.gates.expectations.data_docs import GATE_DOCS, SITE, pages_of, read_page
from tidegate.gates.expectations.library import warm
from tidegate.gates.expectations.validation import validations_of
from tidegate.ledger import open_ledger
from tidegate.records.records import Verdict
from tidegate.sinks import DeltaAppend

pytestmark = in_turn(seconds=60)

GOOD = [{"id": 1, "country": "DE", "v": 1.0}, {"id": 2, "country": "AT", "v": 2.0}]
BAD = [{"id": 3, "country": "DE", "v": -3.0}, {"id": 4, "country": "AT", "v": -4.0}, {"id": 5, "v": 5.0}]


@pytest.fixture(scope="module")
def gx() -> Any:
    warm()
    import great_expectations

    return great_expectations


def make_project(gx: Any, folder: Path) -> Any:
    """What a person types who starts with Great Expectations."""
    from great_expectations.expectations.row_conditions import Column

    context = gx.get_context(mode="file", project_root_dir=folder)
    suite = context.suites.add(gx.ExpectationSuite(name="orders"))
    rules = gx.expectations
    suite.add_expectation(rules.ExpectColumnValuesToNotBeNull(column="country", mostly=0.5, severity="warning"))
    suite.add_expectation(
        rules.ExpectColumnValuesToBeBetween(column="v", min_value=0, row_condition=Column("country") == "DE")
    )
    suite.add_expectation(rules.ExpectTableRowCountToBeBetween(min_value=1, severity="info"))
    return context


def play(root: Path, spark: Any, suite: Any = "orders", **options: Any) -> SmallPipeline:
    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, country string, v double")
        gate = Expectations(suite, on_failure="quarantine", **options)
        rows.gate(gate, name="checked").sink("kept", DeltaAppend("tables/kept"))

    return SmallPipeline(root, spark, build)


def checkpoint(played: SmallPipeline) -> tuple[Verdict, str]:
    coordinator = played.coordinator()
    triggered = coordinator.trigger(f"run {coordinator.ledger.view().last_id + 1}")
    assert isinstance(triggered, Triggered)
    ack = run_job(coordinator, triggered.plan.id, "main", played.spark)
    outcome = coordinator.complete(triggered.plan.id)
    coordinator.publish()
    return ack.gates["checked"], outcome.state


def docs(root: Path, *words: str) -> dict[str, Any]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["docs", "gates", "play", "-D", f"root={root / 'ledger'}", *words, "--json"])
    assert code == 0, out.getvalue()
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def test_a_suite_that_is_edited_in_great_expectations_judges_the_next_checkpoint(spark, tmp_path, gx):
    context = make_project(gx, tmp_path)
    files = {path: path.read_bytes() for path in sorted((tmp_path / "gx").rglob("*")) if path.is_file()}
    played = play(tmp_path, spark, context="gx")
    played.feed(GOOD)
    assert checkpoint(played)[0].outcome == "pass"
    played.feed(BAD)
    verdict, state = checkpoint(played)
    assert (verdict.outcome, verdict.quarantined, state) == ("quarantine", 1, "completed"), "-4.0 is not of DE"
    assert [rule.rule for rule in verdict.broken] == ["expect_column_values_to_be_between(v)"]
    assert {path: path.read_bytes() for path in files} == files, "the project is as it was"

    suite = context.suites.get("orders")
    between = next(each for each in suite.expectations if hasattr(each, "min_value") and hasattr(each, "column"))
    between.row_condition = None
    between.save()
    played.feed(BAD)
    assert checkpoint(played)[0].quarantined == 2


def test_a_suite_of_python_is_a_gate_too(spark, tmp_path, gx):
    rules = gx.expectations
    suite = gx.ExpectationSuite(
        name="in python",
        expectations=[
            rules.ExpectColumnValuesToBeBetween(column="v", min_value=0),
            rules.ExpectColumnToExist(column="v"),
        ],
    )
    played = play(tmp_path, spark, suite)
    played.feed(BAD)
    verdict, _ = checkpoint(played)
    assert (verdict.quarantined, verdict.policy["suite"]) == (2, "in python")


def test_a_context_without_files_is_refused_and_says_what_to_pass(gx):
    context = gx.get_context(mode="ephemeral")
    [told] = Expectations("orders", context=context).problems()
    assert "an ephemeral context keeps its suites in this process's memory only" in told
    assert "Expectations(context.suites.get('orders'))" in told


def test_every_checkpoint_can_be_had_as_great_expectations_own_results(spark, tmp_path, gx):
    make_project(gx, tmp_path)
    played = play(tmp_path, spark, context="gx", at_most=0.4)
    played.feed(GOOD)
    checkpoint(played)
    played.feed(BAD)
    assert checkpoint(played)[1] == "completed"
    played.feed(BAD[:2])
    verdict, state = checkpoint(played)
    assert (verdict.outcome, state) == ("abort", "aborted"), "half of the rows are bad"

    into = tmp_path / "told"
    told = docs(tmp_path, "--into", str(into), "--values")
    assert told["missing"] == []
    assert told["pages"] == 4, "three runs and a suite"
    context = gx.get_context(mode="file", context_root_dir=into)
    store = context.validation_results_store
    results = sorted((store.get(key) for key in store.list_keys()), key=lambda each: each.meta["run_id"]["run_name"])
    assert [each.meta["run_id"]["run_name"] for each in results] == [f"checkpoint-{n:08d}" for n in (1, 2, 3)]
    assert [each.success for each in results] == [True, False, False]
    assert [each.meta["batch_parameters"]["checkpoint_state"] for each in results] == [
        "completed",
        "completed",
        "aborted",
    ]
    between = next(each for each in results[1].results if each.expectation_config.kwargs.get("column") == "v")
    assert between.result["unexpected_count"] == 1
    assert between.result["partial_unexpected_list"] == ["-3.0"]
    assert between.expectation.column == "v", "its configuration is an expectation"
    own = gx.get_context(mode="file", project_root_dir=tmp_path).suites.get("orders")
    ids = {each.id for each in own.expectations}
    assert {each.expectation_config.id for each in results[1].results} == ids, "the ids that it has given"
    assert results[1].get_max_severity_failure().value == "critical"
    assert context.suites.get("orders").name == "orders"

    page = (into / "uncommitted/data_docs/local_site/index.html").read_text()
    assert page.count("checkpoint-0000000") >= 3
    for path in (into / "uncommitted/data_docs/local_site").rglob("*.html"):
        text = path.read_text()
        assert "<script" not in text
        assert 'src="http' not in text
        assert "stylesheet" not in text, "a page loads nothing"
        assert "default-src 'none'" in text, "and could not"
    assert docs(tmp_path, "--into", str(into), "--values")["written"] == 0, "and a second time changes nothing"


def test_a_held_checkpoint_has_a_result_that_says_so_until_it_is_decided(spark, tmp_path, gx):
    make_project(gx, tmp_path)

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "id long, country string, v double")
        gate = Expectations("orders", context="gx", on_failure="hold")
        rows.gate(gate, name="checked").sink("kept", DeltaAppend("tables/kept"))

    played = SmallPipeline(tmp_path, spark, build)
    played.feed(BAD)
    assert checkpoint(played)[1] == "open"

    def state() -> str:
        docs(tmp_path, "--results-only")
        [path] = (tmp_path / "ledger/play/gate-docs/uncommitted/validations/orders").rglob("*.json")
        told = json.loads(path.read_text())["meta"]["batch_parameters"]
        assert told["verdict"] == "hold"
        return str(told["checkpoint_state"])

    assert state() == "held"
    answer(played.coordinator().ledger, 1, None, approve=True, by="mia")
    assert played.coordinator().complete(1).state == "completed"
    assert state() == "completed", "it is the same file"


def test_data_docs_of_a_ledger_in_an_object_store_are_beside_it_too(spark, tmp_path, gx):
    make_project(gx, tmp_path)
    played = play(tmp_path, spark, context="gx")
    played.feed(GOOD)
    checkpoint(played)
    with s3() as server:
        settings = server.settings("shop")
        words = [word for name, value in settings.items() for word in ("-D", f"{name}={value}")]
        ledger = open_ledger(settings["root"], "play", server.options)

        def copy_ledger() -> None:
            """Put its new files into the bucket: as if the pipeline ran there."""
            known = set(server.objects("shop/ledger"))
            for path in (tmp_path / "ledger/play").rglob("*"):
                key = f"shop/ledger/{path.relative_to(tmp_path / 'ledger')}"
                if path.is_file() and key not in known:
                    server.put(key, path.read_bytes())

        copy_ledger()
        told = docs(tmp_path, *words)
        assert (told["pages"], told["missing"]) == (2, []), "a run and a suite"
        assert told["index"] == f"{settings['root']}/play/{GATE_DOCS}/{SITE}/index.html"
        first = pages_of(ledger, 1)["checked"]
        built = read_page(ledger, first)
        assert built is not None
        assert b"checkpoint-00000001" in built

        played.feed(BAD)
        checkpoint(played)
        copy_ledger()
        assert docs(tmp_path, *words)["pages"] == 3
        assert read_page(ledger, first) == built, "it was not built again, nor lost"
        assert (read_page(ledger, "index.html") or b"").count(b"checkpoint-0000000") >= 2
        second = read_page(ledger, pages_of(ledger, 2)["checked"])
        assert b"checkpoint-00000002" in (second or b"nothing")
        assert docs(tmp_path, *words)["written"] == 0


def test_values_are_only_told_if_they_are_asked_for(spark, tmp_path, gx):
    make_project(gx, tmp_path)
    played = play(tmp_path, spark, context="gx")
    played.feed(BAD)
    checkpoint(played)
    ledger = played.coordinator().ledger
    [entry] = [ledger.entry(1)]
    assert entry is not None
    [plain], [with_values] = validations_of(ledger, entry), validations_of(ledger, entry, values=True)
    assert "-3.0" not in json.dumps(plain.document)
    assert "-3.0" in json.dumps(with_values.document)
    counts = [each["result"].get("unexpected_count") for each in plain.document["results"]]
    assert counts == [each["result"].get("unexpected_count") for each in with_values.document["results"]]

    told = docs(tmp_path)
    assert told["folder"] == str(tmp_path / "ledger/play/gate-docs"), "beside the ledger, where the pages link to it"
    assert all("-3.0" not in path.read_text() for path in (tmp_path / "ledger/play/gate-docs").rglob("*.json"))
    assert main(["docs", "gates", "play", "-D", f"root={tmp_path / 'ledger'}", "--values"]) == 2
