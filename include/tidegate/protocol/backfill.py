"""The rules of lines (docs/protocol.md, section 14), as pure functions like those in rules.py.

A line recomputes what a pipeline has made: it is a ledger of its own, forked from a checkpoint of the live log, that
replays the recorded input of later live checkpoints through today's code. One entry of the live log, the swap, brings
its result in. A swap is a rollback: it goes back to the checkpoint that the line was forked from, and brings content.

The invariants, and the rules that they follow from:

  - A line replays the input of each live checkpoint whose input counts once, in order. A rollback may end that; then
    the line cannot be swapped in. A swap does not: the same input counts after it.             (L2, L4)
  - The swap is the last entry of the log, all lower ones are decided, and the line has replayed all input that counts.
    So the rows of every input are in the tables once, before the swap and after it.            (L4)
  - A line is swapped in once, or discarded, or both in this order. What a decided swap names is never deleted. (L5, L8)
  - While a line lives, nothing of the live log is retired from its origin on.                  (L1)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.protocol.clock import clock_of_replay
from tidegate.protocol.rules import Abort, CreateEntry, Wait, next_abort, own_entry, plan_base
from tidegate.protocol.view import View, rolled_back_by
from tidegate.records.records import Pin, Plan

__all__ = [
    "LINE_DISCARDED",
    "SWAP_INTERRUPTED",
    "Approved",
    "BackfillProgress",
    "CaughtUp",
    "ChangedByHand",
    "FillGap",
    "JudgedHold",
    "Refuse",
    "RemoveBackfill",
    "Replay",
    "ReplayCut",
    "Swapped",
    "decide_shared_approval",
    "on_cut",
    "on_discard",
    "on_replay",
    "on_swap",
    "spared_for_lines",
]

SWAP_INTERRUPTED = "SWAP_INTERRUPTED"
"""The reason for aborting a swap that was not decided by the process that created it."""

LINE_DISCARDED = "LINE_DISCARDED"
"""The reason for aborting a swap of a line that is being discarded."""


@dataclass(frozen=True)
class BackfillProgress:
    """How far a line has come."""

    run: str
    """The run under which it is swapped in. It belongs to the line alone, whoever swaps and however often."""
    origin: int
    """The live checkpoint that it was forked from; 0 for the beginning."""
    head: int
    """The highest number in its own log; its origin, or 0, while that is empty."""
    replayed: tuple[int, ...] = ()
    """The live checkpoints whose input it has replayed, ascending."""
    lowest: int = 1
    """For a line that begins at the beginning: the live entry that its pin is on, above all that was retired. Plans
    below may be gone, so the first entry that it replays, be it a rollback, stands for all input from the beginning."""

    @property
    def rests_on(self) -> int:
        """The live checkpoint up to which it has replayed; 0 for the beginning."""
        return self.replayed[-1] if self.replayed else self.origin

    @property
    def reached(self) -> int:
        """The live entry above which it has everything to replay."""
        return self.rests_on or self.lowest - 1


# -- answers: each is a single next step, with the values that it needs ---------------------------------


@dataclass(frozen=True)
class Replay:
    """Replay the input of these live checkpoints next, in this order. Several may be merged into one, none is split."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class CaughtUp:
    """The line has replayed everything that counts so far."""


@dataclass(frozen=True)
class ReplayCut:
    """The next checkpoint of the line covers these live checkpoints."""

    ids: tuple[int, ...]
    clock: str
    """Its time, if it reads no more than they did."""


@dataclass(frozen=True)
class ChangedByHand:
    """A person has changed states in these live checkpoints. No replay does that again: somebody has to choose."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Refuse:
    """The line cannot continue and cannot be swapped in, because of these live entries."""

    why: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Swapped:
    """The line was swapped in by entry `id`. That is done, whatever has become of the entry since."""

    id: int


@dataclass(frozen=True)
class FillGap:
    """Create entry `id` as a control entry, so that ids go past those of the line; then call again."""

    id: int


@dataclass(frozen=True)
class RemoveBackfill:
    """Delete the line's files, except those that entry `named_by` names (None: no entry does)."""

    named_by: int | None


# -- replay (L2) ---------------------------------------------------------------------------------------


def on_replay(
    view: View, line: BackfillProgress, rollbacks: Iterable[tuple[int, int]] = (), swaps: Collection[int] = ()
) -> Replay | CaughtUp | Refuse | Swapped:
    """Decide what a line does next. `line` was read *before* the view was read from the live log.

    view: of the line's run; reaches down to the live entry that the line has reached. rollbacks: all completed ones
    above the line's origin, as (entry, its target), and of these the swaps, as far as the view does not reach down.
    """
    own = own_entry(view, line.run)
    if own is not None and not _is_open(view, own):
        return Swapped(own)
    known = {*rollbacks, *((id, target) for id, target, _ in _rollbacks_in(view))}
    swaps = {*swaps, *(id for id, _, is_swap in _rollbacks_in(view) if is_swap)}
    # A swap makes the same input count as before, with other rows: so as to input it is no rollback.
    of_input = sorted((id, target) for id, target in known if id not in swaps)
    if line.origin and rolled_back_by(line.origin, sorted(known)) is not None:
        return Refuse("the checkpoint that it was forked from does not count any more", (line.origin,))
    undone = tuple(id for id in line.replayed if rolled_back_by(id, of_input) is not None)
    if undone:
        return Refuse("what it has replayed was rolled back since", undone)
    if line.rests_on and view.get(line.rests_on) is None:
        return Refuse("the log does not hold the checkpoint any more up to which it has replayed", (line.rests_on,))
    above = [entry for entry in view.entries if entry.id > line.reached and entry.completed]
    counting = [entry for entry in above if rolled_back_by(entry.id, of_input) is None]
    first = () if line.rests_on else tuple(entry.id for entry in counting[:1])
    if not line.rests_on and not first:
        return Refuse("there is no completed checkpoint whose input it could replay", ())
    ids = first + tuple(entry.id for entry in counting[len(first) :] if entry.rollback is None)
    return Replay(ids) if ids else CaughtUp()


def on_cut(plans: Sequence[Plan], base: Plan | None, *, recorded: bool, drops: bool) -> ReplayCut | ChangedByHand:
    """Decide which of the live checkpoints that are left to replay the line's next one covers.

    plans: those of the checkpoints that are left, in order; at least one. base: the plan that the line's checkpoint
    rests on. recorded: it covers one live checkpoint, with that one's ranges;
    else as many as the sources' bounds allow. drops: a person has chosen that changes by hand are lost.
    """
    by_hand = tuple(plan.id for plan in plans if plan.is_by_hand)
    covered = list(plans)
    if by_hand and not drops:
        covered = [plan for plan in plans if plan.id < by_hand[0]]
        if not covered:
            return ChangedByHand(by_hand)
    if recorded:  # what is dropped leaves no checkpoint behind: it goes with the next one
        covered = covered[: next((place for place, plan in enumerate(covered, 1) if not plan.is_by_hand), len(covered))]
    return ReplayCut(tuple(plan.id for plan in covered), clock_of_replay(covered[-1].time, base))


# -- holds (L9) ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedHold:
    """What a person is asked about: what one gate has found in one checkpoint's rows."""

    declaration: str
    """The gate's, as its fingerprint."""
    ranges: str
    """What was read, as the fingerprint of all ranges."""
    rules: str
    """The verdict per rule."""
    rows: str
    """The judged rows, as a hash of their multiset; empty: it is not known."""


@dataclass(frozen=True)
class Approved:
    """What a live checkpoint was approved for."""

    judged: JudgedHold
    by_person: bool
    """False: by the time limit, which has looked at nothing."""


def decide_shared_approval(replays: Sequence[int], held: JudgedHold, live: Mapping[int, Approved]) -> int | None:
    """Decide whether an approval of a live checkpoint is also one of a line's checkpoint that a gate holds. Return that
    live checkpoint; None: somebody has to look at it.

    replays: the live checkpoints that it covers. live: those among them that were approved at the same gate.
    """
    approved = live.get(replays[0]) if len(replays) == 1 else None
    carries = approved is not None and approved.by_person and held.rows != "" and approved.judged == held
    return replays[0] if carries else None


def _is_open(view: View, id: int) -> bool:
    entry = view.get(id)
    return entry is not None and entry.open


def _rollbacks_in(view: View) -> list[tuple[int, int, bool]]:
    """Return the completed rollbacks: entry, target, and whether it is a swap."""
    found = [(entry.id, entry.rollback) for entry in view.entries if entry.rollback is not None and entry.completed]
    return [(id, rollback.target, rollback.line is not None) for id, rollback in found]


# -- swap (L4) -----------------------------------------------------------------------------------------

Swapping: TypeAlias = Replay | Refuse | Swapped | Abort | Wait | FillGap | CreateEntry


def on_swap(
    view: View,
    line: BackfillProgress,
    rollbacks: Iterable[tuple[int, int]] = (),
    swaps: Collection[int] = (),
    give_up: Mapping[int, str] | None = None,
) -> Swapping:
    """Decide the next step of a swap. The first arguments are those of `on_replay`.

    give_up: open entries that somebody has reason to end, as for a trigger. All others are waited for. The answer's
    `base` is the live checkpoint up to which the line has replayed: the last one, which the swap undoes.
    """
    own = own_entry(view, line.run)
    if own is not None and _is_open(view, own):
        return Abort(own, SWAP_INTERRUPTED, "it was not decided by the process that created it", counts=False)
    next_step = on_replay(view, line, rollbacks, swaps)
    if not isinstance(next_step, CaughtUp):
        return next_step
    doomed = next_abort(view, give_up or {})
    if doomed is not None:
        return doomed
    open_ids = tuple(entry.id for entry in view.still_open())
    if open_ids:
        return Wait(open_ids)
    if view.last_id + 1 <= line.head:
        return FillGap(view.last_id + 1)
    base = plan_base(view)
    generation = base.plan.generation if base is not None else 0
    return CreateEntry(id=view.last_id + 1, base=base.id if base is not None else None, generation=generation + 1)


# -- the end of a line (L1, L8) ------------------------------------------------------------------------


def on_discard(view: View, run: str) -> Abort | RemoveBackfill:
    """Decide the next step of discarding a line. The view is of the line's run, and was read after its tombstone was
    created: a swap that is created later sees the tombstone and ends without a decision."""
    own = own_entry(view, run)
    if own is not None and _is_open(view, own):
        return Abort(own, LINE_DISCARDED, "the line that it would bring in is being discarded", counts=False)
    return RemoveBackfill(named_by=own)


def spared_for_lines(pins: Sequence[Pin]) -> int | None:
    """Return the lowest live entry that lines need: it and all above it must stay. None: there is no line."""
    return min((pin.entry for pin in pins if pin.kind == "line"), default=None)
