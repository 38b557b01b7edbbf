"""Four jobs, three checkpoints at once, and any of their processes dies anywhere: the tables are right in the end.

A short form of `make matrix`, which does it at every point and in every way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.crash import four_jobs
from tests.crash.four_jobs import MODES, take_all, without_spark
from tests.crash.interleaved_processes import FATES, Passing, story
from tests.crash.matrix import AT_ONCE, Case, passings, sample, tell
from tests.kit.sampling import in_turn
from tidegate.checkpoint import manifests
from tidegate.checkpoint.manifests import _counted
from tidegate.connectors.channel import Channel
from tidegate.protocol import progress
from tidegate.protocol.view import Acked, Entry

pytestmark = in_turn(seconds=35)

EVERY = 31
"""So many points further is the next story's; a prime, so that each run, job and fate has its turn."""

POINTS = {
    *("S1.entry.before", "S1.entry.after", "S2.run.before", "S2.run.after", "S3.inputs.after"),
    *("S4.stage.before", "S4.stage.after", "S6.ack.before", "S6.ack.after"),
    *("S6.overtaken.before", "S6.overtaken.after", "S8.manifest.before", "S8.manifest.after"),
    *("S9.decision.before", "S9.decision.after", "S10.publish.before", "S10.publish.after"),
    *("S11.published.before", "S11.published.after", "H1.history.before", "H1.history.after"),
    *("S12.retire.before", "S12.retire.after", "S13.delete.before", "S13.delete.after"),
}


@pytest.mark.parametrize("k", AT_ONCE)
@pytest.mark.parametrize("mode", MODES)
def test_a_process_dies_anywhere_and_the_tables_are_right(tmp_path: Path, mode: str, k: int) -> None:
    told = {case: tell(tmp_path / "world", *case) for case in sample(tmp_path / "first", mode, k, EVERY)}
    assert not {case: what for case, what in told.items() if what}
    assert {case.fate for case in told} == set(FATES)


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize("point", ["S6.overtaken.before", "S6.overtaken.after"])
def test_a_job_dies_while_it_says_that_a_checkpoint_goes_past_it(tmp_path: Path, point: str, fate: str) -> None:
    assert not tell(tmp_path, "unaligned", 3, Passing("run1.paying", point, 1), fate)


@pytest.mark.parametrize(("k", "job", "table"), [(1, "paying", "paid"), (3, "main", "orders")])
def test_at_least_once_rows_come_twice_and_none_is_missing(tmp_path: Path, k: int, job: str, table: str) -> None:
    """Else the mode would be exactly once by accident, and its matrix would show nothing."""
    with without_spark():
        theatre = story(tmp_path, "at least once", k, Passing(f"run1.{job}", "S5.through.after", 1), "retried")
    assert theatre.met
    four_jobs.check(theatre.world, 5)
    ids = [row["id"] for row in theatre.world.table(table)]
    assert len(ids) > len(set(ids)), f"what {job} had written is written once more"


def test_the_story_comes_by_every_point_and_much_is_passed(tmp_path: Path) -> None:
    """Else the matrix would leave something out."""
    with without_spark():
        patient, hasty = (story(tmp_path / mode, mode, 3) for mode in ("timed", "unaligned"))
    assert {each.point for each in hasty.passings} == POINTS
    assert {each.task.split(".")[0] for each in hasty.passings} >= {"run0", "run1", "run2"}
    assert hasty.passed >= 4
    when = {mode: min(tick for tick in told.went_past) for mode, told in (("timed", patient), ("unaligned", hasty))}
    assert when["timed"] >= when["unaligned"] + 10, "it has waited first"
    assert not any(each.point == "S6.overtaken.after" for each in passings(tmp_path / "aligned", "aligned", 3))


def _the_last_only(self: Channel, sent: Sequence[Any], context: Any, spark: Any) -> Any:
    return take_all(self, sent[-1:], context, spark)


def _whatever_it_continues_from(job: str, last: Acked, held: Any, counting: Sequence[Entry]) -> tuple[Acked, ...]:
    return (last,)


def _of_the_last_ack(line: Sequence[Entry]) -> Any:
    jobs, acks, in_flight = _counted(line)
    return jobs, list({ack.job: ack for ack in acks}.values()), in_flight


BUGS = {
    "takes the last of what is in flight": (four_jobs, "take_all", _the_last_only),
    "publishes what the last ack has made": (manifests, "_counted", _of_the_last_ack),
    "counts whatever it goes on from": (progress, "_chain", _whatever_it_continues_from),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_oracle_has_teeth(tmp_path: Path, bug: str) -> None:
    stories = [(None, ""), *((each.passing, each.fate) for each in sample(tmp_path, "unaligned", 3, 29))]
    with mock.patch.object(*BUGS[bug]):
        assert any(tell(tmp_path, "unaligned", 3, *each) for each in stories)


def test_a_case_that_was_never_reached_is_told(tmp_path: Path) -> None:
    case = Case("aligned", 1, Passing("run9.main", "S6.ack.before", 1), "retried")
    assert "never reached" in tell(tmp_path, *case)
