"""Hooks are told how each checkpoint ended: at least once, in order, whatever crashes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.toys import ToySink, ToySource
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.execution import notifications
from tidegate.execution.finish import finish
from tidegate.execution.notifications import notify_settled
from tidegate.history.table import remember
from tidegate.ledger import Ledger
from tidegate.ledger.ledger import stamp
from tidegate.pipeline.hooks import Settled
from tidegate.records.records import Published, PublishedTable


class Died(BaseException):
    """The process is killed."""


@dataclass
class Listener:
    """A hook that remembers what it was told; some calls fail."""

    told: list[Settled] = field(default_factory=list)
    raises: BaseException | None = None
    fails_once: bool = False
    """Only the next call fails."""

    def __call__(self, settled: Settled) -> None:
        if self.raises is not None:
            error, self.raises = self.raises, None if self.fails_once else self.raises
            raise error
        self.told.append(settled)

    @property
    def outcomes(self) -> list[tuple[int, bool]]:
        return [(settled.id, settled.completed) for settled in self.told]


@dataclass
class Listening(ToyWorld):
    listeners: dict[str, Listener] = field(default_factory=lambda: {"mail": Listener()})

    def pipeline(self) -> Pipeline:
        pipeline = super().pipeline()
        for name, listener in self.listeners.items():
            pipeline.hook(name, on_completed=listener, on_aborted=listener)
        return pipeline

    def end(self, id: int, failure: tuple[str, str] | None = None) -> None:
        def wait(why: str) -> None:
            raise AssertionError(why)

        finish(self.coordinator(), id, failure, give_up=lambda plan: None, wait=wait)

    def whole(self, run: str) -> int:
        """A checkpoint from its start to its end."""
        self.feed_more(1)
        id = self.trigger(run)
        self.work(id)
        self.end(id)
        return id


@pytest.fixture
def world(tmp_path):
    return Listening(tmp_path)


@pytest.fixture
def mail(world):
    return world.listeners["mail"]


def test_each_end_is_told_in_order_and_once_if_nothing_goes_wrong(world, mail):
    world.whole("one")
    world.end(world.trigger("two"), ("JOB_FAILED", "boom"))
    world.whole("three")
    notify_settled(world.coordinator())
    assert mail.outcomes == [(1, True), (2, False), (3, True)]
    assert (mail.told[1].reason, mail.told[1].detail, mail.told[1].run) == ("JOB_FAILED", "boom", "two")


def test_whoever_ends_the_next_checkpoint_tells_what_a_dead_process_has_not(world, mail):
    world.checkpoint("one", rows=1)
    assert mail.told == [], "it died between publishing and telling"
    world.coordinator().abort(world.trigger("two"), "RUN_GONE")
    world.whole("three")
    assert mail.outcomes == [(1, True), (2, False), (3, True)]


def test_a_process_that_dies_right_after_the_call_has_it_called_again(world, mail, monkeypatch):
    def dies(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as killed:
        killed.setattr(notifications, "_remember", dies)
        with pytest.raises(Died):
            world.whole("one")
    world.whole("two")
    assert mail.outcomes == [(1, True), (1, True), (2, True)]


def test_a_hook_that_fails_is_told_again_first_and_holds_back_nobody_else(world, mail):
    other = world.listeners["other"] = Listener()
    mail.raises = ValueError("the mail server is down")
    world.whole("one")
    world.whole("two")
    assert (mail.outcomes, other.outcomes) == ([], [(1, True), (2, True)])
    assert world.state(2) == "completed"
    trouble = world.ledger.trouble()
    assert (trouble.step, trouble.reason) == ("notifying hook mail", "HOOK_NOT_TOLD")
    mail.raises = None
    world.whole("three")
    assert mail.outcomes == [(1, True), (2, True), (3, True)]
    assert other.outcomes == [(1, True), (2, True), (3, True)]


def test_a_hook_that_fails_once_hears_of_later_checkpoints_only_after_that_one(world, mail):
    mail.raises = ValueError("the mail server is down")
    world.whole("one")
    mail.fails_once = True
    world.whole("two")
    assert mail.outcomes == [], "it failed for the first, so the second waits"
    world.whole("three")
    assert mail.outcomes == [(1, True), (2, True), (3, True)]


def test_what_is_not_on_all_tables_is_not_told_and_neither_is_what_comes_after_it(world, mail):
    world.whole("one")
    world.weather.stuck.add("b")
    world.whole("two")
    world.end(world.trigger("three"), ("JOB_FAILED", ""))
    assert mail.outcomes == [(1, True)]
    world.weather.stuck.clear()
    world.whole("four")
    assert mail.outcomes == [(1, True), (2, True), (3, False), (4, True)]


def test_what_is_rolled_back_before_it_is_on_all_tables_has_come_to_nothing(world, mail):
    world.whole("one")
    world.weather.stuck.add("b")
    world.whole("two")
    world.coordinator().roll_back(1, run="back", by="x")
    world.weather.stuck.clear()
    world.whole("four")
    assert [(settled.id, settled.reason) for settled in mail.told] == [(1, ""), (2, "ROLLED_BACK"), (4, "")]


def test_lower_ones_that_are_open_are_waited_for(world, mail):
    world.limit(max_concurrent_checkpoints=2)
    world.feed_more(2)
    first, second = world.trigger("one"), world.trigger("two")
    world.work(first)
    world.coordinator().abort(second, "CANCELLED")
    notify_settled(world.coordinator())
    assert mail.told == []
    world.end(first)
    assert mail.outcomes == [(1, True), (2, False)]


def test_what_is_retired_by_then_is_told_from_the_history(world, mail):
    world.limit(num_retained=1)
    mail.raises = ValueError("the mail server is down")
    world.whole("one")
    mail.raises = None
    notify_settled(world.coordinator())
    mail.raises = ValueError("the mail server is down")
    for run in ("two", "three", "four"):
        world.whole(run)
    assert world.ledger.ids() == [4]
    mail.raises = None
    world.whole("five")
    assert mail.outcomes == [(1, True), (2, True), (3, True), (4, True), (5, True)]


def test_a_hook_is_told_of_what_was_planned_while_the_pipeline_had_it(world, mail):
    world.limit(num_retained=1)
    world.whole("one")
    del world.listeners["mail"]
    for run in ("two", "three"):
        world.whole(run)
    late = world.listeners["late"] = Listener()
    world.listeners["mail"] = mail
    world.whole("four")
    assert (mail.outcomes, late.outcomes) == ([(1, True), (4, True)], [(4, True)])


def test_without_such_a_hook_nothing_is_written(world):
    world.listeners.clear()
    world.whole("one")
    assert not (world.folder / "told.json").exists()
    assert world.ledger.plan(1).notifies == []


def test_if_the_hint_is_lost_it_is_told_again_rather_than_never(world, mail):
    world.whole("one")
    (world.folder / "told.json").unlink()
    world.whole("two")
    assert mail.outcomes == [(1, True), (1, True), (2, True)]


def test_a_hook_for_an_operator_names_one(world):
    pipeline = Pipeline("orders")
    rows = pipeline.source("in", ToySource(world.feed))
    rows.sink("a", ToySink("a", world.tables))
    with pytest.raises(Invalid, match="no operator emits"):
        pipeline.hook("mail", on_completed=print, of=rows)


def test_a_hook_for_an_operator_is_told_the_versions_of_its_states(world, mail, monkeypatch):
    world.listeners["totals"] = Listener()
    world.whole("one")
    names = ["orders", "state.totals", "state.totals.timers", "state.totals2"]
    tables = {name: PublishedTable(uri=f"/{name}", version=n, log_hash="0" * 64) for n, name in enumerate(names)}
    shown = Published(**stamp("x"), id=1, tables=tables)
    monkeypatch.setattr(Ledger, "published", lambda self, id: shown)
    coordinator, entry = world.coordinator(), world.ledger.entry(1)
    versions = {
        operator: notifications._settled(coordinator, replace(coordinator.graph.hooks[0], operator=operator), entry)
        for operator in ("", "totals")
    }
    assert versions[""].versions == {"orders": 0}
    assert versions["totals"].versions == {"state.totals": 1, "state.totals.timers": 2}


def test_the_history_is_asked_for_nothing_as_long_as_nothing_is_retired(world, mail, monkeypatch):
    def none(*_: Any) -> Any:
        raise AssertionError("it costs a look at a table")

    monkeypatch.setattr(notifications, "CheckpointHistory", none)
    world.limit(num_retained=1)
    for run in ("one", "two", "three"):
        world.whole(run)
    remember(world.ledger, {})
    assert mail.outcomes == [(1, True), (2, True), (3, True)]
