"""The rules of lines, question by question. `log` draws the live log as text: see `draw`."""

from dataclasses import replace

import msgspec
import pytest

from tidegate.protocol.backfill import (
    BackfillProgress,
    CaughtUp,
    FillGap,
    Refuse,
    RemoveBackfill,
    Replay,
    Swapped,
    on_discard,
    on_replay,
    on_swap,
    spared_for_lines,
)
from tidegate.protocol.rules import Abort, CreateEntry, RunJob, Wait, on_job
from tidegate.protocol.view import Acked, Entry, View, rollback_of
from tidegate.records.records import Ack, Decision, Handle, JobStats, Manifest, Pin, Plan, Rollback, SwappedBackfill

WHO = {"attempt": "x", "created": "now"}
RUN = "line:1"
NOT_HELD = "the log does not hold the checkpoint any more up to which it has replayed"


def log(*entries, first=1):
    return View(entries=tuple(draw(first + number, text) for number, text in enumerate(entries)))


def draw(id, text):
    """`done`, `open`, `aborted`; `back 2`: a rollback to 2; `swap 2`: the swap of the line, forked from 2; `other 2`:
    that of another line. `back 2 open` is not decided."""
    words = text.split()
    kind, target = words[0], int(words[1]) if len(words) > 1 and words[1].isdigit() else None
    rollback = None
    if target is not None:
        line = SwappedBackfill(name="fix", uid="u", head=1, manifest="ab" * 32) if kind != "back" else None
        rollback = Rollback(target=target, manifest="ab" * 32 if target else None, line=line, by="me", tables={})
    record = plan(id, RUN if kind == "swap" else f"run{id}", rollback)
    if "open" in words:
        return Entry(plan=record)
    if "aborted" in words:
        return Entry(plan=record, decision=Decision(**WHO, id=id, outcome="aborted"))
    manifest = Manifest(**WHO, id=id, base=record.base, base_manifest=None, positions={}, jobs={}, tables={})
    decision = Decision(**WHO, id=id, outcome="completed", manifest="ab" * 32)
    return Entry(plan=record, decision=decision, manifest=manifest)


def plan(id, run, rollback):
    return Plan(
        **WHO,
        id=id,
        kind="manual" if rollback is None else "restart",
        run=run,
        base=id - 1 or None,
        rollback=rollback,
        sources={},
        triggers=[],
        acks=[],
        commits=[],
        timeout_s=1.0,
        config={},
        config_fingerprint="",
        code_fingerprint="",
    )


def line(origin, *replayed, head=1):
    return BackfillProgress(RUN, origin, head, replayed)


@pytest.mark.parametrize(
    ("live", "progress", "answer"),
    [
        (log("done", "done", "done"), line(1), Replay((2, 3))),
        (log("done", "done", "done"), line(1, 2), Replay((3,))),
        (log("done", "done", "done"), line(0), Replay((1, 2, 3))),
        (log("done", "done", "open"), line(1, 2), CaughtUp()),
        (log("done", "aborted", "done", "aborted"), line(1), Replay((3,))),
        (log("done", "done", "back 1", "done"), line(1), Replay((4,))),
        (log("done", "done", "back 1", "back 2"), line(1, 2), CaughtUp()),
        (log("done", "done", "other 1", "done"), line(1), Replay((2, 4))),
        (log("done", "done", "other 1", "done"), line(1, 2), Replay((4,))),
        (log("done", "done", "other 1", "done"), line(3), Replay((4,))),
        (log("done", "done", "other 1", "back 2"), line(1, 2), CaughtUp()),
    ],
    ids=str,
)
def test_a_line_replays_what_counts_and_comes_after_what_it_has_replayed(live, progress, answer):
    assert on_replay(live, progress) == answer


@pytest.mark.parametrize(
    ("live", "progress", "because_of"),
    [
        (log("done", "done", "done", "back 1"), line(1, 2, 3), (2, 3)),
        (log("done", "done", "back 1", "done"), line(2), (2,)),
        (log("done", "done", "other 1", "done"), line(2), (2,)),
        (log("done", "done", "other 1", "back 1"), line(1, 2), (2,)),
        (log("done", "done", first=7), line(3), (3,)),
    ],
    ids=str,
)
def test_a_line_ends_when_what_it_rests_on_does_not_count(live, progress, because_of):
    answer = on_replay(live, progress)
    assert isinstance(answer, Refuse)
    assert answer.ids == because_of
    assert on_swap(live, progress) == answer


def test_a_line_from_the_beginning_starts_with_the_lowest_entry_that_is_left():
    live = log("done", "done", "done", first=7)
    assert on_replay(live, BackfillProgress(RUN, 0, 0, (), lowest=7)) == Replay((7, 8, 9))
    assert on_replay(live, BackfillProgress(RUN, 0, 1, (7, 8), lowest=7)) == Replay((9,))
    assert on_replay(live, BackfillProgress(RUN, 0, 1, (3,), lowest=3)) == Refuse(NOT_HELD, (3,))
    below = log("done", "back 3", "done", first=7)
    assert on_replay(below, BackfillProgress(RUN, 0, 0, (), lowest=7)) == Replay((8, 9))
    assert isinstance(on_replay(log("aborted", first=7), BackfillProgress(RUN, 0, 0, (), lowest=7)), Refuse)
    back = log("done", "done", "back 7", first=7)
    assert on_replay(back, BackfillProgress(RUN, 0, 0, (), lowest=7)) == Replay((7,))


def test_a_rollback_below_the_view_is_known_from_its_pin():
    live = log("done", "done", first=8)
    assert on_replay(live, line(3, 5, 8)) == Replay((9,))
    assert isinstance(on_replay(live, line(3, 5, 8), [(7, 4)]), Refuse)


@pytest.mark.parametrize(
    ("live", "answer"),
    [
        (log("done", "done"), CreateEntry(id=3, base=2, generation=1)),
        (log("done", "done", "aborted"), CreateEntry(id=4, base=2, generation=1)),
        (log("done", "done", "done"), Replay((3,))),
        (log("done", "done", "open"), Wait((3,))),
        (log("done", "done", "back 1 open"), Wait((3,))),
        (log("done", "done", "done", "open"), Replay((3,))),
        (log("done", "done", "swap 1"), Swapped(3)),
        (log("done", "done", "swap 1 aborted"), CreateEntry(id=4, base=2, generation=1)),
        (log("done", "done", "swap 1", "back 2"), Swapped(3)),
    ],
    ids=str,
)
def test_a_swap_comes_last_and_only_when_nothing_is_left_to_replay(live, answer):
    assert on_swap(live, line(1, 2)) == answer


def test_a_line_that_is_swapped_in_replays_nothing_more():
    assert on_replay(log("done", "done", "swap 1", "done"), line(1, 2)) == Swapped(3)
    assert on_replay(log("done", "done", "swap 1", "back 2", "done"), line(1, 2)) == Swapped(3)
    assert on_replay(log("done", "done", "swap 1 open"), line(1, 2)) == CaughtUp()


def test_a_swap_that_was_left_undecided_is_ended_by_the_next_attempt():
    answer = on_swap(log("done", "done", "swap 1 open"), line(1, 2))
    assert isinstance(answer, Abort)
    assert answer.id == 3


def test_a_swap_gives_up_what_there_is_reason_to_give_up():
    answer = on_swap(log("done", "done", "open"), line(1, 2), give_up={3: "CHECKPOINT_EXPIRED"})
    assert isinstance(answer, Abort)
    assert (answer.id, answer.reason) == (3, "CHECKPOINT_EXPIRED")


def test_a_swap_is_above_every_number_of_its_line():
    live = log("done", "done")
    assert on_swap(live, line(1, 2, head=2)) == CreateEntry(id=3, base=2, generation=1)
    assert on_swap(live, line(1, 2, head=3)) == FillGap(3)


def test_what_a_swap_undid_counts_again_after_a_rollback_over_it():
    rollbacks = [(5, 1), (6, 3)]
    assert [id for id in range(1, 7) if rollback_of(id, rollbacks) is None] == [1, 2, 3, 6]


def test_a_discard_ends_an_open_swap_and_spares_what_a_decided_one_names():
    assert on_discard(log("done", "done"), RUN) == RemoveBackfill(None)
    assert on_discard(log("done", "done", "swap 1 aborted"), RUN) == RemoveBackfill(None)
    assert on_discard(log("done", "done", "swap 1"), RUN) == RemoveBackfill(3)
    assert on_discard(log("done", "done", "swap 1", "back 2"), RUN) == RemoveBackfill(3)
    assert on_discard(View((draw(9, "done"),), own_outside_view=(4,)), RUN) == RemoveBackfill(4)
    answer = on_discard(log("done", "done", "swap 1 open"), RUN)
    assert isinstance(answer, Abort)
    assert answer.id == 3


def test_the_lowest_line_spares_all_above():
    def pin(kind, entry):
        return Pin(**WHO, owner=f"{kind}-{entry}", kind=kind, entry=entry, manifest="ab" * 32)

    assert spared_for_lines([pin("savepoint", 1)]) is None
    assert spared_for_lines([pin("savepoint", 1), pin("line", 7), pin("line", 4)]) == 4


def test_jobs_continue_from_the_copies_of_acks_that_a_swap_names():
    swap = draw(3, "swap 1")
    handle = Handle(entry=3, sha="cd" * 32)
    ack = Ack(**WHO, id=3, job="main", prev=None, sinks={}, stats=JobStats())
    manifest = msgspec.structs.replace(swap.manifest, jobs={"main": handle})
    swap = replace(swap, acks={"main": Acked(ack, handle)}, manifest=manifest)
    assert swap.acks_agree
    assert on_job(Entry(plan=plan(4, "run4", None)), swap, "main") == RunJob(handle)
    without = replace(swap, acks={})
    assert not without.acks_agree
