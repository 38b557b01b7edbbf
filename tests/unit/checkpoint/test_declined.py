"""An error of the declaration that a job has found: told once, and no run makes a checkpoint until that changes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake

from tests.kit.loop import Loop
from tests.kit.shop import Shop
from tests.kit.toy_world import ToyWorld, quietly
from tidegate.checkpoint.compatibility import decline
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid
from tidegate.execution.finish import finish, record_failed_plan
from tidegate.gates import Expectations

WRONG = Invalid("operator 'totals' names 'price'", expected="columns id", help="correct by", reason="UNKNOWN_COLUMN")


def declined(world: ToyWorld, run: str) -> int:
    """A run whose job finds out that the declaration is wrong, and fails."""
    world.feed_more(3)
    id = world.trigger(run)
    decline(world.coordinator(), id, WRONG)
    coordinator = world.coordinator()
    finish(coordinator, id, ("JOB_FAILED", "task job_main is failed"), give_up=lambda plan: None, wait=lambda why: None)
    return id


def test_it_aborts_the_checkpoint_with_its_own_words_and_suspends_nothing(world: ToyWorld) -> None:
    world.limit(tolerable_failed_checkpoints=0)
    id = declined(world, "one")
    decision = world.ledger.decision(id)
    assert decision is not None
    assert (decision.outcome, decision.reason, decision.counts) == ("aborted", "BAD_DECLARATION", False)
    assert "operator 'totals' names 'price'" in decision.detail
    assert world.coordinator().suspended() is None


def test_later_runs_are_refused_with_the_same_words_and_make_no_entry(world: ToyWorld) -> None:
    id = declined(world, "one")
    for run in ("two", "three"):
        with pytest.raises(Invalid, match="operator 'totals' names 'price'") as caught:
            world.trigger(run)
        assert (caught.value.reason, caught.value.expected) == ("UNKNOWN_COLUMN", "columns id")
        assert "correct by" in caught.value.help
    assert world.ledger.ids() == [id]


def test_with_other_code_or_other_settings_it_is_tried_again(world: ToyWorld) -> None:
    declined(world, "one")
    world.sinks = {"a": 0}
    assert world.trigger("other code") == 2
    world.coordinator().abort(2, "CANCELLED")
    world.sinks = {"a": 0, "b": 0}
    assert isinstance(quietly(lambda: world.coordinator().trigger("as before")), Invalid)
    world.limit(recorded={"watermark": "1 min"})
    assert world.trigger("other settings") == 3


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidegate.toml").write_text('root = "ledger"\n')
    return Shop(tmp_path)


def test_with_a_table_of_other_columns_it_is_tried_again_but_not_for_each_commit_of_others(shop: Shop) -> None:
    shop.checkpoint()
    coordinator = shop.coordinator
    id = shop.trigger().id
    decline(coordinator, id, WRONG)
    coordinator.abort(id, "BAD_DECLARATION")
    write_deltalake(shop.table.url, pa.table({"k": [7], "v": ["of others"]}), mode="append")
    with pytest.raises(Invalid, match="operator 'totals' names 'price'"):
        shop.trigger()
    DeltaTable(shop.table.url).alter.add_columns([Field("price", "long")])
    assert shop.trigger().id == id + 1


def test_a_checkpoint_that_completes_ends_it_whatever_is_written_there(world: ToyWorld) -> None:
    id = declined(world, "one")
    world.limit(recorded={"watermark": "1 min"})
    world.checkpoint("other settings", rows=3)
    world.limit(recorded={})
    assert world.trigger("as before, and it does work by now") == id + 2
    world.coordinator().abort(id + 2, "JOB_FAILED")
    assert world.trigger("again") == id + 3


def test_it_is_told_once(world: ToyWorld) -> None:
    told: list[str] = []

    def coordinator() -> Coordinator:
        pipeline = world.pipeline()
        pipeline.on_suspended(lambda suspension: told.append(suspension.why))
        return Coordinator(pipeline.graph(), world.ledger, world.limits, world.place)

    world.coordinator = coordinator  # type: ignore[method-assign]
    world.limit(tolerable_failed_checkpoints=0)
    id = declined(world, "one")
    finish(coordinator(), id, None, give_up=lambda plan: None, wait=lambda why: None)
    for run in ("two", "three"):
        quietly(lambda run=run: coordinator().trigger(run))  # type: ignore[misc]
        record_failed_plan(coordinator(), run)
    assert told == ["its declaration is wrong: UNKNOWN_COLUMN: operator 'totals' names 'price'"]


def test_if_the_run_that_found_it_dies_before_it_could_tell_the_next_one_tells(world: ToyWorld) -> None:
    told: list[str] = []
    world.feed_more(3)
    id = world.trigger("one")
    decline(world.coordinator(), id, WRONG)
    world.coordinator().abort(id, "JOB_LOST")
    pipeline = world.pipeline()
    pipeline.on_suspended(lambda suspension: told.append(suspension.why))
    coordinator = Coordinator(pipeline.graph(), world.ledger, world.limits, world.place)
    for run in ("two", "three"):
        assert isinstance(quietly(lambda run=run: coordinator.trigger(run)), Invalid)  # type: ignore[misc]
        record_failed_plan(coordinator, run)
    assert told == ["its declaration is wrong: UNKNOWN_COLUMN: operator 'totals' names 'price'"]


def test_with_other_code_a_later_failure_is_told_for_what_it_is(world: ToyWorld) -> None:
    world.feed_more(3)
    id = world.trigger("one")
    decline(world.coordinator(), id, WRONG)
    world.sinks = {"a": 0}
    coordinator = world.coordinator()
    finish(coordinator, id, ("JOB_FAILED", "no memory"), give_up=lambda plan: None, wait=lambda why: None)
    decision = world.ledger.decision(id)
    assert decision is not None
    assert (decision.reason, decision.detail) == ("JOB_FAILED", "no memory")


def test_a_suite_is_a_part_of_it(world: ToyWorld, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    rules = "expectations:\n  - type: expect_column_to_exist\n    kwargs: {column: id}\n"
    path.write_text(rules)
    world.gates = {"checked": Expectations(str(path))}
    declined(world, "one")
    assert isinstance(quietly(lambda: world.coordinator().trigger("two")), Invalid)
    path.write_text(f"{rules}  - type: expect_column_to_exist\n    kwargs: {{column: at}}\n")
    assert world.trigger("three") == 2


def test_whoever_starts_a_loop_by_hand_has_it_tried_again(tmp_path: Path) -> None:
    one = Loop(tmp_path)
    declined(one.world, "one")
    assert one.run(checkpoints=1)[0].state == "completed"
    assert one.world.ledger.declined() is None
