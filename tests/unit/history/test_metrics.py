"""Metrics: what each number says after a story, and that the text can be read by who scrapes it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tests.kit.prometheus import parsed
from tests.simulation.toy_backfill import Endless
from tidegate import seams
from tidegate.backfill import begin
from tidegate.checkpoint import troubles
from tidegate.errors import Invalid
from tidegate.execution.runs import abandoned_reason
from tidegate.history.backfill import backfill_statuses
from tidegate.history.details import CheckpointDetails, GateDetails, JobDetails, SourceDetails, StateSize
from tidegate.history.health import PUBLISHING_S, Observations, condition
from tidegate.history.metrics import METRICS, Figures, Metric, figures, metrics
from tidegate.history.prometheus import prometheus_text
from tidegate.history.promises import PromiseStatus
from tidegate.history.schemas.drift import DriftDetails, MisfitDetails
from tidegate.history.table import remember
from tidegate.history.view import CheckpointView
from tidegate.lifecycle import control
from tidegate.protocol.view import View
from tidegate.records.records import Amount, Lag, RecordedRule

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def numbers(world, tolerable=0):
    limits = type("Limits", (), {"tolerable_failed_checkpoints": tolerable, "root": "s3://a", "data": "s3://a"})
    found = metrics(figures(world.ledger, limits, {}, abandoned_reason, NOW))
    text = prometheus_text({"toy": found})
    assert parsed(text) == {(m.name, tuple(sorted({"pipeline": "toy", **m.labels}.items()))): m.value for m in found}
    return {(metric.name, *metric.labels.values()): metric.value for metric in found}


def test_nothing_is_told_of_what_never_was(world):
    world.ledger.start()
    found = numbers(world)
    assert found["totalNumberOfCheckpoints",] == found["needsAttention",] == 0
    assert found["lastCheckpointRestoreTimestamp",] == -1
    assert ("lastCheckpointDuration",) not in found


def test_counts_are_of_all_that_ever_was(world):
    """Also of checkpoints whose records are gone."""
    world.limit(num_retained=1)
    for n in range(4):
        world.checkpoint(f"run{n}", rows=3)
        remember(world.ledger, {})
        world.coordinator().retire()
    assert world.ledger.ids() == [4]
    world.feed_more(3)
    world.coordinator().abort(world.trigger("fails"), "JOB_FAILED", "boom", counts=True)
    world.coordinator().resume("ann", "")
    world.trigger("open")
    found = numbers(world)
    names = ("totalNumberOfCheckpoints", "numberOfCompletedCheckpoints", "numberOfFailedCheckpoints")
    assert [found[name,] for name in (*names, "numberOfInProgressCheckpoints")] == [6, 4, 1, 1]
    assert found["lastCompletedCheckpointId",] == 4
    assert found["numberOfConsecutiveFailures",] == 0, "somebody has resumed"


def test_a_backfill_that_cannot_be_read_hides_neither_the_pipeline_nor_what_is_wrong(tmp_path):
    world = Endless(tmp_path)
    for number in range(2):
        world.checkpoint(f"run {number}")
    begin(world.coordinator(), "fix", 1, by="ann")
    for plan in (world.folder / "lines/fix").rglob("plan.json"):
        plan.write_text("{")
    found = numbers(world)
    assert (found["readable",], found["lastCompletedCheckpointId",]) == (1, 2)
    [status] = backfill_statuses(world.ledger, {})
    assert status.state == "blocked"
    assert "cannot be read" in status.blocked_by


def test_the_last_completed_one_is_measured(world):
    world.checkpoint("one", rows=3)
    found = numbers(world)
    assert found["numRecordsOut", "a"] == found["numRecordsOut", "b"] == 3
    decided = world.ledger.decision(1).created
    assert found["lastCheckpointCompletedTimestamp",] == round(datetime.fromisoformat(decided).timestamp() * 1000)
    assert found["lastCheckpointDuration",] >= 0
    assert found["unpublishedCheckpoints",] == found["unpublishedTables",] == 0


def test_what_needs_a_person_is_seen(world):
    world.checkpoint("one", rows=3)
    world.decided("two", rows=3)
    names = ("unpublishedCheckpoints", "unpublishedTables", "needsAttention")
    assert [numbers(world)[name,] for name in names] == [1, 2, 0], "it is being published"
    later = seams.now() + timedelta(seconds=PUBLISHING_S)
    with seams.installed(replace(seams.current(), now=lambda: later)):
        assert [numbers(world)[name,] for name in names] == [1, 2, 1], "nobody has come to do it"
    world.coordinator().publish()
    world.feed_more(3)
    world.coordinator().abort(world.trigger("fails"), "JOB_FAILED", "boom", counts=True)
    names = ("numberOfConsecutiveFailures", "suspended", "needsAttention")
    assert [numbers(world, tolerable=3)[name,] for name in names] == [1, 0, 1]
    assert [numbers(world)[name,] for name in names] == [1, 1, 1]
    control.resume(world.ledger, "ann")
    assert [numbers(world)[name,] for name in names] == [0, 0, 0]


def test_runs_that_cannot_plan_are_counted_until_one_can(world):
    world.checkpoint("one", rows=3)
    for run in ("two", "three"):
        troubles.record_error(world.ledger, run, "trigger", Invalid("no such folder"))
        troubles.record_error(world.ledger, run, "trigger", Invalid("no such folder"))  # a task's second try
        troubles.count_unplanned(world.ledger, run)
    assert numbers(world)["numberOfConsecutivePlanFailures",] == 2
    assert troubles.count_unplanned(world.ledger, "a run that was asked for nonsense") is None
    world.checkpoint("four", rows=3)
    assert numbers(world)["numberOfConsecutivePlanFailures",] == 0


RULE = RecordedRule(rule="positive", policy="quarantine", severity="warning", rows=3, why="3 rows")
DRIFT = DriftDetails(
    records=7,
    misfits=[
        MisfitDetails(path="vip", kind="new", becomes_column=True),
        MisfitDetails(path="a.b", kind="new", why_not="it is inside another column"),
        MisfitDetails(path="id", kind="type"),
    ],
    more=2,
)
DETAILS = CheckpointDetails(
    jobs={
        "main": JobDetails(
            read={"orders": Amount(rows=9, bytes=800, files=2), "payments": Amount(bytes=70, files=1)},
            rows={"good": 7},
            counts={"once": {"late": 2, "late-left": 3, "kept": 5}},
            watermarks={"orders": "2026-03-01T11:59:00Z", "done": "9999-12-31T00:00:00Z"},
        ),
        "second": JobDetails(rows={"good": 1}),
    },
    gates={"checked": GateDetails(outcome="quarantine", rows=10, quarantined=3, released=1, broken=[RULE, RULE])},
    states={"state.once": StateSize(bytes=100, rows=5, files=3, unmerged=4)},
    sources={
        "orders": SourceDetails(lag=Lag(rows=40, seconds=1.5)),
        "payments": SourceDetails(lag=Lag(rows=0)),
        "landing": SourceDetails(lag=Lag(files=3, bytes=4_000), schema="id bigint", drift=DRIFT),
        "steady": SourceDetails(schema="id bigint"),
        "files": SourceDetails(),
    },
)


def view(**values: object) -> CheckpointView:
    """What is not named was not measured."""
    names = [field.name for field in msgspec.structs.fields(CheckpointView)]
    return CheckpointView(**{**dict.fromkeys(names), "details": CheckpointDetails(), **values})


LAST = view(
    id=9,
    decided="2026-03-01T11:00:00+00:00",
    seconds=1.5,
    bytes_out=1000,
    processed_bytes=300,
    state_bytes=100,
    state_delta=40,
    watermark="2026-03-01T11:59:00Z",
    details=DETAILS,
)


def test_every_figure_of_a_row_has_its_metric():
    seen = Observations("orders", View(()), 0)
    counts = dict.fromkeys(("triggered", "completed", "failed", "in_progress", "held"), 0)
    found = metrics(Figures(seen, condition(seen), counts, LAST, view(decided="2026-03-01T10:00:00Z"), NOW))
    told = {(metric.name, *metric.labels.values()): metric.value for metric in found}
    assert told["lastCheckpointDuration",] == 1500
    assert ("checkpointStartDelay",) not in told, "what was not measured is not zero"
    assert (told["lastCheckpointSize",], told["lastCheckpointFullSize",]) == (1040, 1100)
    assert told["lastCheckpointRestoreTimestamp",] == 1772359200000
    assert (told["lastCheckpointProcessedData",], told["lastCheckpointPersistedData",]) == (300, 0)
    assert (told["numRecordsIn", "orders"], told["numBytesIn", "orders"], told["numBytesIn", "payments"]) == (
        9,
        800,
        70,
    )
    assert ("numRecordsIn", "payments") not in told, "what nobody has counted is not zero"
    assert told["numRecordsOut", "good"] == 8
    assert (told["pendingRecords", "orders"], told["oldestPendingRecord", "orders"]) == (40, 1500)
    assert told["pendingRecords", "payments"] == 0
    assert ("oldestPendingRecord", "payments") not in told, "nothing waits there"
    assert ("pendingRecords", "files") not in told, "this source cannot tell"
    assert (told["pendingFiles", "landing"], told["pendingBytes", "landing"]) == (3, 4_000)
    assert ("pendingRecords", "landing") not in told, "it does not count rows"
    names = ("numRecordsRescued", "newColumns", "newKeysWithoutColumn")
    assert [told[name, "landing"] for name in names] == [7, 1, 3]
    assert [told[name, "steady"] for name in names] == [0, 0, 0]
    assert ("numRecordsRescued", "orders") not in told, "its schema does not follow its input"
    assert told["numLateRecordsDropped", "once"] == 5
    assert told["currentInputWatermark", "orders"] == 1772366340000
    assert ("currentInputWatermark", "done") not in told, "the end of time is no watermark"
    assert told["watermarkLag",] == 60_000
    assert told["gateFailures", "checked"] == 2
    assert [told[f"numRecords{what}", "checked"] for what in ("Judged", "Quarantined", "Released")] == [10, 3, 1]
    assert (told["stateSize", "once"], told["stateRows", "once"]) == (100, 5)
    assert (told["stateFiles", "once"], told["stateRowsToMerge", "once"]) == (3, 4)
    assert [name for name in METRICS if name not in {metric.name for metric in found}] == [
        "checkpointStartDelay",
        "checkpointAlignmentTime",
        "checkpointSyncDuration",
        "checkpointAsyncDuration",
        "publishDuration",
        "neverRead",
        "backfillCheckpoints",
        "backfillPendingCheckpoints",
        "backfillLag",
        "tableAge",
        "promisedAge",
        "promiseBroken",
    ]
    assert [metric.name for metric in found] == sorted((m.name for m in found), key=list(METRICS).index)


def test_a_promise_is_measured_by_its_sink():
    broken = PromiseStatus("totals", 900.0, 9, NOW - timedelta(minutes=20), NOW)
    seen = replace(Observations("orders", View(()), 0), promises=(broken, replace(broken, sink="raw", fresh_s=1800.0)))
    counts = dict.fromkeys(("triggered", "completed", "failed", "in_progress", "held"), 0)
    found = metrics(Figures(seen, condition(seen), counts, LAST, None, NOW))
    told = {(metric.name, *metric.labels.values()): metric.value for metric in found}
    assert (told["tableAge", "totals"], told["promisedAge", "totals"], told["promiseBroken", "totals"]) == (
        1_200_000,
        900_000,
        1,
    )
    assert (told["tableAge", "raw"], told["promiseBroken", "raw"]) == (1_200_000, 0)
    assert told["needsAttention",] == 1


@pytest.mark.parametrize("evil", ['"} 1\ntidegate_x{', "back\\slash", "new\nline", "\u202e", "{}"])
def test_no_name_can_break_out_of_its_label(evil):
    found = parsed(prometheus_text({"toy": [Metric("numRecordsOut", 1, {"sink": evil})]}))
    assert found == {("numRecordsOut", (("pipeline", "toy"), ("sink", evil))): 1}


def test_several_pipelines_share_each_metrics_head():
    text = prometheus_text({name: [Metric("suspended", n), Metric("gateFailures", 0.5)] for n, name in enumerate("ab")})
    assert len(parsed(text)) == 4
    assert text.count("# TYPE") == 2
