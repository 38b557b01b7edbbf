"""What must not be done with lines (docs/protocol.md, section 14), each in the smallest world that shows the damage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from unittest import mock

from tests.model.facts import clock_text
from tests.model.mutations import Mutation
from tests.model.worlds import (
    DISCARD,
    L1,
    L2,
    LINE,
    LINE_AHEAD,
    LINE_AND_HAND,
    LINE_AND_POWER,
    LINE_AND_RETENTION,
    LINE_AND_ROLLBACK,
    LINE_BACK_AND_DISCARDED,
    LINE_BEGUN_TWICE,
    LINE_DISCARD_AND_POWER,
    LINE_DISCARDED,
    LINE_FROM_NOTHING,
    LINE_FROM_SAVEPOINT,
    LINE_GAPS,
    LINE_HELD,
    LINE_HELD_MENDED,
    LINE_HELD_RECORDED,
    LINE_RECORDED,
    LINE_SWAPPED_TWICE,
    LINE_TORN,
    PUBLISHER,
    RETIRER,
    TWO_LINES,
)
from tidegate.protocol import backfill as backfill_rules
from tidegate.protocol import rules
from tidegate.protocol.backfill import (
    Approved,
    BackfillProgress,
    CaughtUp,
    FillGap,
    JudgedHold,
    Refuse,
    Replay,
    ReplayCut,
    Swapped,
)
from tidegate.protocol.view import View, rollback_of
from tidegate.records.records import Plan

Rollbacks = Iterable[tuple[int, int]]
Swaps = Collection[int]
AbandonCheck = Mapping[int, str]


def _create(view: View) -> rules.CreateEntry:
    base = view.last_completed
    return rules.CreateEntry(id=view.last_id + 1, base=base.id if base else None, generation=1)


def _whatever_is_open(
    view: View, line: BackfillProgress, rollbacks: Rollbacks, swaps: Swaps, give_up: AbandonCheck
) -> object:
    answer = backfill_rules.on_swap(view, line, rollbacks, swaps, give_up)
    return _create(view) if isinstance(answer, rules.Wait) else answer


def _whatever_is_left(
    view: View, line: BackfillProgress, rollbacks: Rollbacks, swaps: Swaps, give_up: AbandonCheck
) -> object:
    answer = backfill_rules.on_swap(view, line, rollbacks, swaps, give_up)
    return _create(view) if isinstance(answer, Replay) else answer


def _whatever_the_number(
    view: View, line: BackfillProgress, rollbacks: Rollbacks, swaps: Swaps, give_up: AbandonCheck
) -> object:
    answer = backfill_rules.on_swap(view, line, rollbacks, swaps, give_up)
    return _create(view) if isinstance(answer, FillGap) else answer


def _whatever_was_undone(
    view: View, line: BackfillProgress, rollbacks: Rollbacks, swaps: Swaps, give_up: AbandonCheck
) -> object:
    """What the line has replayed is taken to count forever."""
    with mock.patch.object(backfill_rules, "rollback_of", return_value=None):
        return backfill_rules.on_swap(view, line, rollbacks, swaps, give_up)


def _only_what_counts(view: View, line: BackfillProgress, rollbacks: Rollbacks, swaps: Swaps) -> object:
    """What a swap has undone is not replayed."""
    answer = backfill_rules.on_replay(view, line, rollbacks, swaps)
    if not isinstance(answer, Replay):
        return answer
    ids = tuple(id for id in answer.ids if rollback_of(id, list(rollbacks)) is None)
    return Replay(ids) if ids else answer


def _no_rollback_stands_for_anything(view: View, line: BackfillProgress, rollbacks: Rollbacks, swaps: Swaps) -> object:
    """A line from the beginning has nothing to replay where all that is left is a rollback to what is gone."""
    answer = backfill_rules.on_replay(view, line, rollbacks, swaps)
    if not isinstance(answer, Replay):
        return answer
    plain = tuple(entry.id for entry in view.entries if entry.id in answer.ids and entry.rollback is None)
    return Replay(plain) if plain else CaughtUp()


def _no_rollback_is_missed(
    view: View, line: BackfillProgress, rollbacks: Rollbacks, swaps: Swaps, give_up: AbandonCheck
) -> object:
    answer = backfill_rules.on_swap(view, line, rollbacks, swaps, give_up)
    by_rollback = isinstance(answer, Replay) and answer.ids[0] in {id for id, _ in rollbacks}
    return _create(view) if by_rollback and not list(view.still_open()) else answer


def _a_swap_is_a_rollback(view: View, line: BackfillProgress, rollbacks: Rollbacks, swaps: Swaps) -> object:
    """What a swap has undone is taken for input that does not count."""
    answer = backfill_rules.on_replay(view, line, rollbacks, swaps)
    undone = tuple(id for id in line.replayed if rollback_of(id, list(rollbacks)) is not None)
    return Refuse("it was undone", undone) if undone and not isinstance(answer, Swapped) else answer


def _again(view: View, line: BackfillProgress, rollbacks: Rollbacks, swaps: Swaps, give_up: AbandonCheck) -> object:
    """A swap that was rolled back is taken for none."""
    answer = backfill_rules.on_swap(view, line, rollbacks, swaps, give_up)
    if isinstance(answer, Swapped) and rollback_of(answer.id, list(rollbacks)) is not None:
        return backfill_rules.on_swap(view, replace(line, run="another one"), rollbacks, swaps, give_up)
    return answer


def _deaf(view: View, run: str) -> object:
    """An open swap is somebody else's affair."""
    answer = backfill_rules.on_discard(view, run)
    return backfill_rules.RemoveBackfill(None) if isinstance(answer, rules.Abort) else answer


def _clock_of_now(now: str, base: Plan | None, *, by_hand: bool) -> str:
    """Whatever the time was before, on another machine."""
    return now


def _clock_of_the_beginning(head: Plan, base: Plan | None) -> str:
    """That of where the line began, as for a rollback."""
    return clock_text(1)


def _cut_now(plans: Sequence[Plan], base: Plan | None, *, recorded: bool, drops: bool) -> object:
    """A line goes by the time at which it is computed."""
    cut = backfill_rules.on_cut(plans, base, recorded=recorded, drops=drops)
    return replace(cut, clock=clock_text(59)) if isinstance(cut, ReplayCut) else cut


def _larger_cut(plans: Sequence[Plan], base: Plan | None, *, recorded: bool, drops: bool) -> object:
    """Recorded cuts are merged like any."""
    return backfill_rules.on_cut(plans, base, recorded=False, drops=drops)


def _cut_by_hand(plans: Sequence[Plan], base: Plan | None, *, recorded: bool, drops: bool) -> object:
    """A change by hand is taken for a checkpoint without input."""
    return backfill_rules.on_cut(plans, base, recorded=recorded, drops=True)


def _whatever_was_answered(replays: Sequence[int], held: JudgedHold, live: Mapping[int, Approved]) -> object:
    """The time limit counts as a person."""
    return backfill_rules.decide_shared_approval(
        replays, held, {id: replace(each, by_person=True) for id, each in live.items()}
    )


def _whatever_the_rows(replays: Sequence[int], held: JudgedHold, live: Mapping[int, Approved]) -> object:
    """The same input is taken for the same rows."""
    same = {id: replace(each, judged=replace(each.judged, rows=held.rows)) for id, each in live.items()}
    return backfill_rules.decide_shared_approval(replays, held, same)


def _whatever_is_covered(replays: Sequence[int], held: JudgedHold, live: Mapping[int, Approved]) -> object:
    """An approval of one is taken for one of several."""
    return next((id for id in replays if id in live and live[id].by_person), None)


LINE_RETIRED = replace(LINE, actors=(L1, PUBLISHER, DISCARD, RETIRER))

LINE_MUTATIONS = [
    # the beginning, and the pins
    Mutation("check the line's origin, then pin it", LINE_AND_RETENTION, "I6: line 0 needs 1"),
    Mutation("unpin an origin that is found retired", LINE_BEGUN_TWICE, "I6: line 0 needs 1"),
    Mutation("leave a pin behind", LINE_DISCARDED, "its pin is left"),
    Mutation("look at the origin alone", LINE_FROM_SAVEPOINT, "I6: line 0 needs 2"),
    Mutation("delete at once what has a tombstone", LINE_FROM_SAVEPOINT, "I6: line 0 needs 2"),
    Mutation("the line's pin spares its origin alone", replace(LINE_AND_RETENTION, begun=3), "I6: line 0 needs 2"),
    Mutation(
        "pin the ways back after the decision",
        LINE_RETIRED,
        "there is no way back to",
    ),
    # replay
    Mutation("replay what is not durable", LINE_AND_POWER, "I9"),
    Mutation("read the log before the line", LINE_TORN, "a false alarm"),
    # clocks, cuts, and what was done by hand
    Mutation("plan by the clock of the machine alone", replace(LINE, clock_of_plan=_clock_of_now), "I9"),
    Mutation("replay by the clock of now", replace(LINE, on_cut=_cut_now), "I9"),
    Mutation("swap in by the clock of the origin", replace(LINE, clock_of_swap=_clock_of_the_beginning), "I9"),
    Mutation("merge recorded cuts", replace(LINE_RECORDED, on_cut=_larger_cut), "I9"),
    Mutation("take a change by hand for nothing", replace(LINE_AND_HAND, on_cut=_cut_by_hand), "changed by hand"),
    Mutation("lose a change by hand without a word", LINE_AND_HAND, "changed by hand"),
    # holds
    Mutation("carry what the time limit approved", replace(LINE_HELD_RECORDED, on_hold=_whatever_was_answered), "I10"),
    Mutation("carry an approval of other rows", replace(LINE_HELD_MENDED, on_hold=_whatever_the_rows), "I10"),
    Mutation("carry an approval to several", replace(LINE_HELD, on_hold=_whatever_is_covered), "I10"),
    # the swap's entry
    Mutation("take the next free id for the swap", LINE, "is open"),
    Mutation("swap with an open entry below", replace(LINE, on_swap=_whatever_is_open), "is open"),
    Mutation("swap before everything is replayed", replace(LINE, on_swap=_whatever_is_left), "I1"),
    Mutation("swap in what was rolled back", replace(LINE_AND_ROLLBACK, on_swap=_whatever_was_undone), "I1"),
    Mutation("replay only what counts, after a swap", replace(TWO_LINES, on_replay=_only_what_counts), "I1"),
    Mutation(
        "leave out a rollback that stands for what is gone",
        replace(LINE_FROM_NOTHING, on_replay=_no_rollback_stands_for_anything, on_swap=_no_rollback_is_missed),
        "I1",
    ),
    Mutation("take a swap for a rollback", replace(TWO_LINES, on_replay=_a_swap_is_a_rollback), "a false alarm"),
    Mutation("a line's number above its swap's", replace(LINE_AHEAD, on_swap=_whatever_the_number), "I2"),
    Mutation("swap before its base is everywhere", LINE, "no way back"),
    Mutation("swap in again what was rolled back", replace(LINE_SWAPPED_TWICE, on_swap=_again), "run line0 has"),
    # its decision, and its publication
    Mutation("name the line's acks", LINE_DISCARDED, "I6: 3 names acks"),
    Mutation(
        "decide a swap that another process began",
        replace(LINE, actors=(L1, L2, DISCARD)),
        "I6: 3 names acks",
    ),
    Mutation("no commit where a swap changes nothing", LINE_GAPS, "I8"),
    # discard
    Mutation("discard by folder", LINE_DISCARDED, "I6: 3 names files"),
    Mutation("discard what no counting swap names", LINE_BACK_AND_DISCARDED, "I6: 3 names files"),
    Mutation("discard beside an open swap", replace(LINE_DISCARDED, on_discard=_deaf), "I6: 3 names files"),
    Mutation("look for the tombstone before the swap's entry", LINE_DISCARDED, "I6: 3 names files"),
    Mutation("look for the swap, then create the tombstone", LINE_DISCARDED, "names files"),
    Mutation("discard before the tombstone is durable", LINE_DISCARD_AND_POWER, "I6: line 0 lives"),
    Mutation("the line's pin before its files", LINE_AND_RETENTION, "I6: 3 names files"),
]
