"""The DAG for backfills, by `dag.test()`: what its runs compute, and that only a request swaps it in or discards it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.dags.in_process import GREEN, run
from tests.dags.project import MULTIPLIES, Made, Project
from tests.kit.sampling import in_turn
from tidegate.backfill import begin
from tidegate.checkpoint import suspension
from tidegate.cli.lifecycle.rollback import coordinator_of
from tidegate.cli.targets import open_target
from tidegate.history.backfill import backfill_statuses
from tidegate.ledger.ledger import stamp
from tidegate.lifecycle.savepoint import savepoints
from tidegate.records.records import Act, ProposalReported
from tidegate.seams import new_id

pytestmark = in_turn(seconds=40)

WHEN = datetime(2026, 2, 1, tzinfo=UTC)
LOOKED = {
    "check": "success", "replay": "success", "compare": "success", "swap": "skipped", "discard": "skipped",
    "why": "skipped",
}  # fmt: skip


@pytest.fixture
def shop(project: Project, request: pytest.FixtureRequest) -> Made:
    """Its first checkpoint is right and its second one wrong. Now its code is mended."""
    made = project.pipeline(request.node.name.removeprefix("test_")[:40], stage=MULTIPLIES)
    for number, factor in ((1, 1), (2, 100)):
        (made.folder / "factor").write_text(str(factor))
        made.feed()
        assert run(made, number) == GREEN
    (made.folder / "factor").write_text("1")
    return made


def backfill(made: Made, number: int, act: dict[str, Any] | None = None, **conf: Any) -> tuple[str, dict[str, str]]:
    """A run of its DAG for backfills, or that run again. act: what somebody who may has asked of this run."""
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.dagrun import DagRun
    from airflow.utils.types import DagRunType

    bag = DagBag(str(made.dag_file), collect_dags=False)
    bag.process_file(str(made.dag_file))
    dag = bag.dags[f"{made.name}__backfill"]
    when = WHEN + timedelta(days=number)
    if act is not None:
        run_id = DagRun.generate_run_id(run_type=DagRunType.MANUAL, logical_date=when, run_after=when)
        named = f"airflow:{dag.dag_id}:{run_id}"
        recorded = Act(**stamp(new_id()), by="ann in Airflow", run=named, **act)
        conf["request"] = made.ledger.create_act(recorded)
    dag_run = dag.test(logical_date=when, run_after=when, run_conf=conf)
    tasks = {ti.task_id: str(getattr(ti.state, "value", ti.state)) for ti in dag_run.get_task_instances()}
    return str(getattr(dag_run.state, "value", dag_run.state)), tasks


def test_each_task_links_to_the_page_of_the_pipeline(project: Project) -> None:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models.taskinstancekey import TaskInstanceKey

    made = project.pipeline("linked")
    bag = DagBag(str(made.dag_file), collect_dags=False)
    bag.process_file(str(made.dag_file))
    for task in bag.dags["linked__backfill"].tasks:
        (link,) = task.operator_extra_links
        key = TaskInstanceKey("linked__backfill", task.task_id, "a run", 1, -1)
        assert link.get_link(task, ti_key=key).endswith("/dags/linked/plugin/checkpoints")


def wrong(made: Made) -> bool:
    return max(file for _, file in made.rows("latest")) >= 100


def test_a_run_computes_beside_the_pipeline_and_only_a_request_swaps_it_in(shop: Made):
    only_checked = LOOKED | {"replay": "skipped", "compare": "skipped"}
    assert backfill(shop, 0, **{"from": "1", "dry_run": True}) == ("success", only_checked)
    for conf in ({"swap": True}, {"request": "2026-01-01T000000000-0123456789abcdef"}, {}):
        state, tasks = backfill(shop, 0, **conf)
        assert (state, tasks["check"]) == ("failed", "failed"), conf
    assert shop.ledger.store.names("lines") == [], "a form cannot ask for it, and a dry run writes nothing"

    assert backfill(shop, 1, **{"from": "1", "diff": "latest", "to": "2", "cuts": "recorded"}) == ("success", LOOKED)
    assert backfill_statuses(shop.ledger, {})[0].last_comparison is None, "it was a look at a part"
    assert backfill_statuses(shop.ledger, {})[0].record.cuts == "recorded"
    assert backfill(shop, 1, **{"from": "1", "diff": "latest"}) == ("success", LOOKED)
    (line,) = backfill_statuses(shop.ledger, {})
    assert (line.state, line.record.origin, line.caught_up_to, line.pending) == ("caught_up", 1, 2, ())
    assert line.last_comparison is not None
    assert (
        line.last_comparison.tables["every"].rows_removed
        == line.last_comparison.tables["every"].rows_added
        == Made.ROWS
    )
    assert wrong(shop), "nobody sees anything of it"

    shop.feed()
    assert run(shop, 3) == GREEN, "the pipeline goes its way"
    assert backfill_statuses(shop.ledger, {})[0].pending == (3,)
    assert backfill(shop, 1, **{"from": "1"}) == ("success", LOOKED), "cleared, it reads what is new"
    assert backfill_statuses(shop.ledger, {})[0].pending == ()

    swap = {"action": "swap", "request": {"name": line.record.name, "note": "prices"}}
    assert backfill(shop, 2, swap) == ("success", LOOKED | {"swap": "success"})
    shop.check(3)
    assert shop.ledger.lines() == []
    assert suspension.suspended(shop.ledger.view(), 0) is None
    assert [saved.name for saved in savepoints(shop.ledger)] == [f"before-{line.record.name}"]

    done = shop.ledger.ids()
    over = LOOKED | {"replay": "skipped", "compare": "skipped", "check": "skipped"}
    assert backfill(shop, 2, swap) == ("success", over), "cleared, it finds that it is over"
    assert shop.ledger.ids() == done


def proposes(made: Made, name: str, origin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has begun a proposal, and kept it."""
    monkeypatch.chdir(made.project.folder)
    monkeypatch.syspath_prepend(str(made.project.dags))
    coordinator = coordinator_of(open_target(f"dag_{made.name}:pipeline", []))
    begin(coordinator, name, origin, by="ann on laptop", cuts="recorded", purpose="proposal")
    coordinator.ledger.hint_proposal_reported(name, ProposalReported(**stamp(new_id()), report={}))


def test_a_request_accepts_a_proposal_or_ends_it_where_nothing_differs(shop: Made, monkeypatch: pytest.MonkeyPatch):
    proposes(shop, "proposal-1", 1, monkeypatch)
    shop.feed()
    assert run(shop, 3) == GREEN, "the pipeline goes its way, with the mended code"

    def accepts(number: int, name: str, **more: Any) -> tuple[str, dict[str, str]]:
        return backfill(shop, number, {"action": "swap", "request": {"name": name, **more}})

    state, tasks = accepts(1, "proposal-1", fail_on=["rows > 1"])
    assert (state, tasks["compare"], tasks["swap"]) == ("failed", "success", "failed"), "more differs than is allowed"
    assert wrong(shop)
    assert suspension.suspended(shop.ledger.view(), 0) is None
    assert accepts(2, "proposal-1", fail_on=["rows > 100"]) == ("success", LOOKED | {"swap": "success"})
    shop.check(3)
    assert shop.ledger.lines() == []
    assert [saved.name for saved in savepoints(shop.ledger)] == ["before-proposal-1"]

    last = shop.ledger.ids()[-1]
    shop.feed()
    assert run(shop, 4) == GREEN
    proposes(shop, "proposal-2", last, monkeypatch)
    done = shop.ledger.ids()
    assert accepts(5, "proposal-2") == ("success", LOOKED | {"swap": "success"})
    assert (shop.ledger.ids(), shop.ledger.lines()) == (done, []), "nothing differs: it has ended without a swap"
    shop.check(4)


def test_what_fails_beside_the_pipeline_is_no_trouble_of_it_and_continues_when_cleared(shop: Made):
    (shop.folder / "broken").touch()
    state, tasks = backfill(shop, 1, **{"from": "beginning", "name": "all"})
    assert (state, tasks["replay"], tasks["swap"]) == ("failed", "failed", "upstream_failed")
    assert suspension.suspended(shop.ledger.view(), 0) is None
    assert shop.ledger.trouble() is None
    (shop.folder / "broken").unlink()
    assert backfill(shop, 1, **{"from": "beginning", "name": "all"}) == ("success", LOOKED)

    assert backfill(shop, 2, {"action": "discard backfill", "request": {"name": "all"}}) == (
        "success",
        LOOKED | {"replay": "skipped", "compare": "skipped", "discard": "success"},
    )
    assert shop.ledger.lines() == []
    assert not list(shop.folder.rglob("line-all"))
    assert wrong(shop)


def test_a_question_why_a_row_is_there_is_answered_by_a_run_of_its_own(shop: Made):
    rows, done = sorted(shop.rows("latest")), shop.ledger.ids()
    skipped = dict.fromkeys(LOOKED, "skipped")

    def asked(number: int, **request: Any) -> Any:
        act = {"action": "why", "request": {"sink": "latest", **request}}
        assert backfill(shop, number, act) == ("success", skipped | {"why": "success"})
        (newest, _), *_ = shop.ledger.acts(1)
        return shop.ledger.explained(newest.key)

    explained = asked(1, checkpoint=1, values={"id": "1", "file": "1"})
    assert explained.answer["row"] == {"id": 1, "file": 1}
    assert [(each["place"], each["values"]) for each in explained.answer["records"]] == [
        (f"record 1 of {shop.name}/in/00001.json", {"id": 1, "file": 1})
    ]
    assert (explained.answer["since"], explained.answer["unproven"]) == (1, 0)
    refused = asked(2, values={"id": "2", "file": "200"})
    assert refused.answer is None
    assert "does not give this row" in refused.problem, "other code has made it"
    assert asked(3, values={"id": "4711"}).problem.startswith("no row of 'latest' fulfils")
    assert (sorted(shop.rows("latest")), shop.ledger.ids()) == (rows, done)
    assert shop.ledger.lines() == []
