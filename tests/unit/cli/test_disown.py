"""disown: how an interval continues whose rows others have rewritten in a table that has no column for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from deltalake import DeltaTable

from tests.kit.delta import by_foreigner, kv, rows_of, staged
from tests.kit.shop import COLUMNS
from tidegate import seams
from tidegate.cli.targets import open_target
from tidegate.connectors.delta.sink.table import StagedBatch, staged_result
from tidegate.connectors.sink import Staging
from tidegate.coordinator import Coordinator
from tidegate.delta import locate, open_table
from tidegate.errors import Invalid
from tidegate.ledger.ledger import stamp
from tidegate.records.interval import Interval
from tidegate.records.records import Ack, JobStats

CODE = "daily:pipeline"
DAILY = """
from tidegate import Pipeline
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

pipeline = Pipeline("daily")
pipeline.source("in", Files("landing/{start:%Y-%m-%d}/*.json", schema="k long, v string")).sink(
    "good", DeltaAppend("tables/good")
)
"""


def day(number):
    return Interval.between(*(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number + each) for each in (0, 1)))


class Daily:
    """An interval pipeline whose jobs Arrow does: real checkpoints on a real Delta table, without Spark."""

    def __init__(self, folder):
        (folder / "daily.py").write_text(DAILY)
        (folder / "landing").mkdir()
        self.landing = folder / "landing"
        target = open_target(CODE, {}, started=False)
        place = target.settings.place()
        self.coordinator = Coordinator(target.pipeline.graph(place), target.ledger, target.settings, place)
        self.table = locate(place, "tables/good")

    def make(self, number, *rows, publish=True):
        interval, context = day(number), self.coordinator.context("good")
        (self.landing / f"{interval.start:%Y-%m-%d}").mkdir(exist_ok=True)
        (self.landing / f"{interval.start:%Y-%m-%d}" / f"{seams.new_id()}.json").write_text("{}")
        span = interval.start, interval.end
        plan = self.coordinator.trigger(f"run {seams.new_id()}", interval=span, reprocess=True).plan
        attempt = f"{plan.attempt}-{seams.new_id()}"
        files = staged(self.table, Staging(plan.id, attempt, interval).data_folder(context), kv(*rows), COLUMNS)
        snapshot = open_table(self.table)
        batch = StagedBatch(columns=COLUMNS, files=files, since=snapshot.version if snapshot is not None else None)
        packed = {"good": self.coordinator.ledger.pack(staged_result(batch, len(rows)).committable)}
        self.coordinator.ledger.create_ack(
            Ack(**stamp(attempt), id=plan.id, job="main", prev=None, sinks=packed, stats=JobStats())
        )
        assert self.coordinator.complete(plan.id).state == "completed"
        if publish:
            self.coordinator.publish()
        return plan.id

    def rows(self):
        return rows_of(self.table)


@pytest.fixture
def daily(folder):
    """Day 1 was made again; before it was published, somebody has compacted the table, and somebody has added to it."""
    daily = Daily(folder)
    daily.make(0, (1, "a"), (7, "same"))
    daily.make(1, (2, "b"), (7, "same"))
    daily.make(1, (3, "c"), publish=False)
    DeltaTable(daily.table.url).optimize.compact()
    by_foreigner(daily.table, (9, "z"))
    return daily


def given(help):
    """The command that an error's help names."""
    command = help.split("`")[1].split()
    return [CODE if word == "MODULE:pipeline" else word for word in command[1:]]


def test_the_command_that_the_error_names_takes_the_rows_out_and_what_waits_is_published(daily, tidegate):
    daily.make(2, (4, "d"))
    assert (3, "c") not in daily.rows(), "others go on, this one waits"
    said = tidegate("explain", "daily", "--json").json
    assert said["reason"] == "INTERVAL_REWRITTEN"
    command = given(said["remedy"][0])
    assert command[:2] == ["disown", CODE]
    before = daily.rows()
    dry = tidegate(*command, "--dry-run")
    assert (dry.code, daily.rows()) == (0, before)
    assert "2 rows of interval 2026-01-02T00:00/2026-01-03T00:00 are removed" in dry.out
    assert tidegate(*command).code == 2, "nobody can answer"
    said = tidegate(*command, "--yes", "--json")
    assert said.code == 0, said.err
    assert (said.json["rows"], said.json["not_yet"]) == (2, {})
    assert daily.rows() == [(1, "a"), (3, "c"), (4, "d"), (7, "same"), (9, "z")]
    assert tidegate("explain", "daily", "--json").json["state"] == "well"
    daily.make(1, (5, "e"))
    assert daily.rows() == [(1, "a"), (4, "d"), (5, "e"), (7, "same"), (9, "z")]
    assert tidegate(*command, "--yes").code == 1, "there is nothing to let go of any more"


def test_what_somebody_has_deleted_by_hand_is_left_and_what_waits_is_published(daily, tidegate):
    DeltaTable(daily.table.url).delete("k = 2")
    daily.coordinator.publish()
    options = ["disown", CODE, "--sink", "good", "--interval", "2026-01-02/2026-01-03"]
    refused = tidegate(*options, "--take-out", "--yes", "--json")
    assert (refused.code, refused.json["error"]["reason"]) == (2, "INTERVAL_CHANGED")
    assert "--leave" in refused.json["error"]["help"]
    assert (3, "c") not in daily.rows()
    assert tidegate(*options, "--leave", "--yes").code == 0
    assert daily.rows() == [(1, "a"), (3, "c"), (7, "same"), (7, "same"), (9, "z")]


def test_before_anything_waits_the_same_command_lets_an_interval_be_made_again(daily, tidegate):
    with pytest.raises(Invalid) as caught:
        daily.make(0, (6, "f"))
    assert caught.value.reason == "INTERVAL_REWRITTEN"
    assert tidegate(*given(caught.value.help), "--yes").code == 0
    daily.make(0, (6, "f"))
    assert (6, "f") in daily.rows()
    assert (1, "a") not in daily.rows()


@pytest.mark.parametrize(("sink", "interval"), [("other", "2026-01-01/2026-01-02"), ("good", "2027-01-01/2027-01-02")])
def test_who_names_what_is_not_there_is_told_so(daily, tidegate, sink, interval):
    said = tidegate("disown", CODE, "--sink", sink, "--interval", interval, "--leave", "--yes", "--json")
    assert said.code in (1, 2)
    assert said.json["error"]["reason"] in ("NOTHING_TO_DISOWN", "NOT_REWRITTEN")


@pytest.mark.parametrize("line", ["savepoint create daily first", "read daily"])
def test_where_nothing_is_published_yet_the_remedy_names_an_interval(folder, tidegate, line):
    daily = Daily(folder)
    plan = daily.coordinator.trigger("run", interval=(day(0).start, day(0).end)).plan
    daily.coordinator.abort(plan.id, "TIMEOUT", "enough")
    said = tidegate(*line.split())
    assert said.code == 1
    assert "tidegate run MODULE:PIPELINE --interval FROM/TO" in said.err
