"""Why a run is red, in words: what `complete` makes of what the other tasks have left."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.kit.toy_world import ToyWorld
from tidegate.dag.tasks.reasons import failure
from tidegate.dag.tasks.task import Task
from tidegate.errors import Fenced, Invalid, Rejected, TidegateError, Unavailable
from tidegate.history.health import describe_texts


@pytest.mark.parametrize(
    ("state", "left", "expected"),
    [
        ("failed", "STAGE_FAILED: it broke\n  Help: mend it", "task job_main is failed: STAGE_FAILED: it broke"),
        ("failed", None, "task job_main is failed, without a message: its process was killed, or never started"),
        ("success", None, "task job_main is success (by hand?), but has not acked"),
        ("skipped", None, "task job_main is skipped"),
    ],
)
def test_a_task_that_was_killed_is_told_as_that(world: ToyWorld, state: str, left: str | None, expected: str):
    """kill -9 leaves no word: that there is none says what happened."""
    world.feed_more(1)
    id = world.trigger("one")
    task = SimpleNamespace(
        coordinator=world.coordinator(), states=lambda: {"job_main": state}, pulled=lambda task_id, key: left
    )
    reason, detail = failure(task, id)
    assert reason == "JOB_FAILED"
    assert detail.startswith(expected)
    (*helps,) = describe_texts(detail)[2]
    if state in ("success", "skipped"):
        assert len(helps) == 1
        assert "marking a task does no work: clear the task" in helps[0], "else it would be told of a want of memory"
    else:
        assert helps == (["mend it"] if left else [])


@pytest.mark.parametrize(("of_environment", "reason"), [(True, "ENVIRONMENT_FAILED"), (False, "JOB_FAILED")])
def test_that_there_is_no_spark_is_no_failure_of_the_pipeline(world: ToyWorld, of_environment: bool, reason: str):
    """What a failed task has reported; of one that was killed nothing is known."""
    world.feed_more(1)
    id = world.trigger("one")
    left = {"failure": "The Spark server did not start", "of_environment": of_environment}
    task = SimpleNamespace(
        coordinator=world.coordinator(), states=lambda: {"job_main": "failed"}, pulled=lambda task_id, key: left[key]
    )
    found = failure(task, id)
    assert found[0] == reason
    outcome = world.coordinator().complete(id, found)
    assert (outcome.state, outcome.counts) == ("aborted", not of_environment)


@pytest.mark.parametrize(
    ("error", "told_of"),
    [
        (Invalid("no such folder", reason="NO_FOLDER"), True),
        (Unavailable("Spark is gone"), True),
        (Invalid("the run was given 'x'", reason="UNKNOWN_CONF"), False),
        (Rejected("not now"), False),
        (Fenced("others lead"), False),
    ],
)
def test_word_is_left_of_the_pipelines_troubles_not_of_a_runs(world: ToyWorld, error: TidegateError, told_of: bool):
    world.ledger.start()
    measured: list[bool] = []
    task = SimpleNamespace(coordinator=world.coordinator(), run="one", measure=lambda: measured.append(True))
    Task.note(task, "trigger", error)
    assert (world.ledger.trouble() is not None, measured == [True]) == (told_of, told_of)


@pytest.fixture
def world(tmp_path):
    return ToyWorld(tmp_path)
