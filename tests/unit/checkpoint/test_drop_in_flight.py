"""Going on without what was in flight between jobs: told in full before, and nothing else is lost or doubled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.kit.records import SAMPLES
from tests.kit.slow_jobs import OvertakingStory, busy, toy_channels
from tidegate.backfill.choosing import outlook
from tidegate.checkpoint.manifests import manifest_flaws
from tidegate.cli.lifecycle import recover as recover_command
from tidegate.cli.lifecycle import rollback as rollback_command
from tidegate.cli.main import main
from tidegate.errors import Fenced, Invalid, Rejected
from tidegate.lifecycle.rollback import roll_back
from tidegate.lifecycle.rollback_preview import RowsInFlight, examine
from tidegate.protocol.progress import allows_overtaking
from tidegate.protocol.view import Entry
from tidegate.records.records import InFlight, Overtaking


@pytest.fixture(autouse=True)
def _toy_channels() -> Iterator[None]:
    with toy_channels():
        yield


def passed_by(tmp_path: Path) -> tuple[OvertakingStory, int]:
    """Checkpoints 2 and 3 went past `slow`, which hangs; it has yet to take a row of each."""
    story, late = busy(tmp_path)
    third = story.planned()
    story.refused(third)
    story.work(third, "slower")
    story.completed(2, third)
    assert story.in_flight(third) == [2, 3]
    story.halves.append(late)
    return story, third


def dropped(story: OvertakingStory, to: int) -> int:
    done = roll_back(story.coordinator(), to, run=f"back {to}", by="mia", choices={}, drop_in_flight=True)
    assert done.error is None
    return done.id


def test_all_rows_that_go_are_told_before(tmp_path: Path) -> None:
    story, third = passed_by(tmp_path)
    for drops in (False, True):
        preview = examine(story.coordinator(), third, {}, drop_in_flight=drops)
        assert preview.in_flight == tuple(RowsInFlight("slow", "in", id, 1) for id in (2, 3))
        assert preview.dropped == ({"slow": [2, 3]} if drops else {})
        assert not preview.problems
    assert story.ledger.ids() == [1, 2, 3], "looking changes nothing"


def test_a_backfill_says_which_checkpoints_went_past_a_job_because_it_goes_past_none(tmp_path: Path) -> None:
    story, third = passed_by(tmp_path)
    recorded, own = (outlook(story.coordinator(), 0, cuts)["may_differ"] for cuts in ("recorded", "own"))
    assert (
        f"checkpoint 2, {third} overtook a busy job, which then read more rows at once; a backfill does not" in recorded
    )
    assert not any("went past" in text for text in own), "with cuts of its own that is nothing special"


def test_the_job_continues_from_what_comes_next_and_nobody_else_notices(tmp_path: Path) -> None:
    story, third = passed_by(tmp_path)
    back = dropped(story, third)
    entry = story.ledger.entry(back)
    assert entry is not None
    assert entry.plan.rollback is not None
    assert entry.plan.rollback.dropped == {"slow": [2, 3]}
    assert story.in_flight(back) == []
    last = story.planned(rows=2)
    ack = story.work(last, "slow", at_work=False)
    assert [handle.entry for handle in ack.inputs["main"]] == [last]
    story.work(last, "slower")
    story.completed(last)
    assert story.shown("a") == story.shown("c") == [1, 2, 3, 4, 5]
    assert story.shown("b") == [1, 4, 5], "2 and 3 were in flight to it"
    with pytest.raises(Fenced):
        story.ended(story.halves.pop())  # the task that hung, at last


def test_the_job_may_be_passed_by_again(tmp_path: Path) -> None:
    story, third = passed_by(tmp_path)
    dropped(story, third)
    fifth = story.planned()
    late = story.began(fifth, "slow", at_work=False)
    story.work(fifth, "slower")
    sixth = story.planned()
    story.refused(sixth)
    story.work(sixth, "slower")
    story.completed(fifth, sixth)
    assert story.in_flight(sixth) == [fifth, sixth]
    story.ended(late)
    story.all_done(story.planned())
    assert story.shown("b") == [1, 4, 5, 6]


def test_it_can_be_taken_back_as_long_as_the_checkpoint_is_retained(tmp_path: Path) -> None:
    story, third = passed_by(tmp_path)
    dropped(story, third)
    assert story.coordinator().roll_back(third, run="back again", by="mia").error is None
    story.all_done(story.planned())
    assert story.shown("b") == story.shown("a") == [1, 2, 3, 4]


def test_rows_whose_files_are_gone_stand_in_the_way_of_everything_else_only(tmp_path: Path) -> None:
    story, third = passed_by(tmp_path)
    for file in (tmp_path / "shop").rglob("rows.json"):
        file.unlink()
    with pytest.raises(Rejected, match="files that were in flight are missing"):
        story.coordinator().roll_back(third, run="back", by="mia")
    dropped(story, third)
    story.all_done(story.planned())
    assert (story.shown("a"), story.shown("b")) == ([1, 2, 3, 4], [1, 4])


def test_afterwards_checkpoints_may_wait_for_every_job(tmp_path: Path) -> None:
    story, third = passed_by(tmp_path)
    back = dropped(story, third)
    story.limits = type(story.limits)(**{**vars(story.limits), "recorded": {"unaligned": False}})
    last = story.planned()
    entry, base = story.ledger.entry(last), story.ledger.entry(back)
    assert entry is not None
    assert base is not None
    assert not allows_overtaking([entry, base])
    story.all_done(last)
    assert story.shown("b") == [1, 4]


def test_without_anything_in_flight_there_is_nothing_to_drop(tmp_path: Path) -> None:
    story = OvertakingStory(tmp_path)
    story.all_done(story.planned())
    with pytest.raises(Invalid) as caught:
        roll_back(story.coordinator(), 1, run="back", by="mia", choices={}, drop_in_flight=True)
    assert caught.value.reason == "NOTHING_IN_FLIGHT"
    assert story.ledger.ids() == [1]


def test_of_two_jobs_in_a_row_that_are_behind_the_second_lacks_nothing_from_the_first() -> None:
    """As of 4, `slow` had taken 3 and `last` 2, and the rest was let go of. In 5, both are passed by again."""
    handle = SAMPLES["manifest"].jobs["main"]
    at = {job: msgspec.structs.replace(handle, entry=id) for job, id in {"main": 5, "slow": 3, "last": 2}.items()}
    manifest = msgspec.structs.replace(
        SAMPLES["manifest"],
        id=5,
        positions={},
        jobs=at,
        in_flight={"slow": [InFlight(job="main", ack=at["main"], channels={})]},
        let_go={"slow": 4, "last": 3},
    )
    takes = {"slow": {"clean": "main"}, "last": {"scored": "slow"}}
    overtaking = Overtaking(jobs=["slow", "last"], after_s=0.0)
    plan = msgspec.structs.replace(
        SAMPLES["plan"], id=5, base=4, sources={}, acks=["main", "slow", "last"], takes=takes, overtaking=overtaking
    )
    assert list(manifest_flaws(manifest, Entry(plan))) == []
    (flaw,) = manifest_flaws(msgspec.structs.replace(manifest, let_go={}), Entry(plan))
    assert "nothing is in flight between them" in flaw


@pytest.fixture
def tidegate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command about a story's pipeline; return the exit code and what it printed."""

    def call(story: OvertakingStory, *arguments: str) -> tuple[int, str]:
        target = SimpleNamespace(name="shop", ledger=story.ledger, command=lambda *words: " ".join(map(str, words)))
        for module in (rollback_command, recover_command):
            monkeypatch.setattr(module, "open_target", lambda text, settings: target)
            monkeypatch.setattr(module, "coordinator_of", lambda target: story.coordinator())
        code = main(list(arguments))
        return code, capsys.readouterr().out

    return call


@pytest.mark.parametrize("command", [("rollback", "shop:pipeline", "--to", "3"), ("recover", "shop:pipeline")])
def test_the_commands_tell_how_many_rows_of_which_checkpoints_go(
    tmp_path: Path, tidegate: Any, command: tuple[str, ...]
) -> None:
    story, third = passed_by(tmp_path)
    code, text = tidegate(story, *command, "--drop-in-flight", "--dry-run")
    assert code == 0
    for id in (2, 3):
        assert f"dropped            1 rows of in, sent to job slow in checkpoint {id}: never read" in text
    code, text = tidegate(story, *command, "--drop-in-flight", "--dry-run", "--json")
    assert [(part["checkpoint"], part["rows"]) for part in json.loads(text)["in_flight"]] == [(2, 1), (3, 1)]
    assert tidegate(story, *command, "--drop-in-flight")[0] == 2, "somebody has to say yes"
    assert story.ledger.ids() == [1, 2, third], "nothing was written"
    assert tidegate(story, *command, "--drop-in-flight", "--yes")[0] == 0
    story.all_done(story.planned())
    assert (story.shown("a"), story.shown("b")) == ([1, 2, 3, 4], [1, 4])
