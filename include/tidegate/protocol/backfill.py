"""The rules of lines (docs/protocol.md, section 14), as pure functions like those in rules.py.

A line is a backfill. It is a ledger forked from a checkpoint of the live log, which replays the recorded input of later
live checkpoints through today's code. One entry of the live log, the swap, brings in its result. A swap is a rollback
to the checkpoint that the line was forked from, plus the line's content.

The invariants, and the rules that they follow from:

  - A line replays the input of each live checkpoint whose input counts once, in order. A rollback may end that; then
    the line cannot be swapped in. A swap does not: the same input counts after it.             (L2, L4)
  - The swap is the last entry of the log, all lower ones are decided, and the line has replayed all input that counts.
    So the rows of every input are in the tables once, before the swap and after it.            (L4)
  - A line is swapped in once, or discarded, or both in this order. Files that a decided swap names are never deleted.
                                                                                                (L5, L8)
  - While a line exists, no live entry from its origin on is retired.                           (L1)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.protocol.clock import clock_of_replay
from tidegate.protocol.rules import Abort, CreateEntry, Wait, entry_of_run, next_abort, plan_base
from tidegate.protocol.view import View, rollback_of
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
    """How far a line has replayed."""

    run: str
    """The run under which it is swapped in. It belongs to this line alone, and every attempt at the swap uses it."""
    origin: int
    """The live checkpoint that it was forked from; 0 for the beginning."""
    head: int
    """The highest number in the line's log. While that is empty: its origin, or 0."""
    replayed: tuple[int, ...] = ()
    """The live checkpoints whose input it has replayed, ascending."""
    lowest: int = 1
    """For a line that begins at the beginning: the live entry that its pin is on, above all retired entries. Plans
    below may be deleted, so the first replayed entry, even a rollback, covers all input from the beginning."""

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
    """A person changed states in these live checkpoints. A replay cannot repeat that, so a person has to choose."""

    ids: tuple[int, ...]


@dataclass(frozen=True)
class Refuse:
    """The line cannot continue and cannot be swapped in, because of these live entries."""

    why: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Swapped:
    """The line was swapped in by entry `id`. That is final, even if the entry was rolled back since."""

    id: int


@dataclass(frozen=True)
class FillGap:
    """Create entry `id` as a control entry, to raise the live ids above the line's; then call again."""

    id: int


@dataclass(frozen=True)
class RemoveBackfill:
    """Delete the line's files, except those that entry `named_by` names (None: no entry does)."""

    named_by: int | None


# -- replay (L2) ---------------------------------------------------------------------------------------


def on_replay(
    view: View, line: BackfillProgress, rollbacks: Iterable[tuple[int, int]] = (), swaps: Collection[int] = ()
) -> Replay | CaughtUp | Refuse | Swapped:
    """Decide the next step of a line. `line` was read *before* the view was read from the live log.

    view: of the line's run; it includes the live entry that the line has reached. rollbacks: all completed ones above
    the line's origin, as (entry, its target). swaps: those of them that are swaps. Both may omit entries of the view.
    """
    swap_id = entry_of_run(view, line.run)
    if swap_id is not None and not _is_open(view, swap_id):
        return Swapped(swap_id)
    all_rollbacks, all_swaps = set(rollbacks), set(swaps)
    for id, target, is_swap in _rollbacks_in(view):
        all_rollbacks.add((id, target))
        if is_swap:
            all_swaps.add(id)
    # After a swap the same input counts as before, with other rows: for input it is not a rollback.
    input_rollbacks = sorted((id, target) for id, target in all_rollbacks if id not in all_swaps)
    if line.origin and rollback_of(line.origin, sorted(all_rollbacks)) is not None:
        return Refuse("the checkpoint that it was forked from does not count any more", (line.origin,))
    undone = tuple(id for id in line.replayed if rollback_of(id, input_rollbacks) is not None)
    if undone:
        return Refuse("what it has replayed was rolled back since", undone)
    if line.rests_on and view.get(line.rests_on) is None:
        return Refuse("the log does not hold the checkpoint any more up to which it has replayed", (line.rests_on,))
    above = [entry for entry in view.entries if entry.id > line.reached and entry.completed]
    counting = [entry for entry in above if rollback_of(entry.id, input_rollbacks) is None]
    if not line.rests_on and not counting:
        return Refuse("there is no completed checkpoint whose input it could replay", ())
    ids = []
    for index, entry in enumerate(counting):
        covers_all_below = index == 0 and not line.rests_on  # see BackfillProgress.lowest
        if covers_all_below or entry.rollback is None:
            ids.append(entry.id)
    return Replay(tuple(ids)) if ids else CaughtUp()


def on_cut(plans: Sequence[Plan], base: Plan | None, *, recorded: bool, drops: bool) -> ReplayCut | ChangedByHand:
    """Decide which of the remaining live checkpoints the line's next checkpoint covers.

    plans: those of the remaining checkpoints, in order; at least one. base: the plan of the base of the line's
    checkpoint. recorded: it covers one live checkpoint, with that one's ranges; otherwise as many as the sources'
    bounds allow. drops: a person chose to lose the changes by hand.
    """
    by_hand = tuple(plan.id for plan in plans if plan.is_manual_edit)
    covered = list(plans)
    if by_hand and not drops:
        covered = [plan for plan in plans if plan.id < by_hand[0]]
        if not covered:
            return ChangedByHand(by_hand)
    if recorded:
        covered = _up_to_first_ordinary(covered)
    return ReplayCut(tuple(plan.id for plan in covered), clock_of_replay(covered[-1].time, base))


def _up_to_first_ordinary(plans: Sequence[Plan]) -> list[Plan]:
    """Return the first plan that was not made by hand, and those before it: dropped changes get no checkpoint, but are
    covered together with the next one."""
    covered = []
    for plan in plans:
        covered.append(plan)
        if not plan.is_manual_edit:
            break
    return covered


# -- holds (L9) ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JudgedHold:
    """The subject of an approval: one gate's findings in one checkpoint's rows."""

    declaration: str
    """The fingerprint of the gate's declaration."""
    ranges: str
    """The fingerprint of all ranges read."""
    rules: str
    """The verdict per rule."""
    rows: str
    """A hash of the judged rows as a multiset, or empty if unknown."""


@dataclass(frozen=True)
class Approved:
    """The approval of a live checkpoint."""

    judged: JudgedHold
    by_person: bool
    """False if the time limit approved it, which examined nothing."""


def decide_shared_approval(replays: Sequence[int], held: JudgedHold, live: Mapping[int, Approved]) -> int | None:
    """Return the live checkpoint whose approval also holds for a line's checkpoint that a gate holds. None if a person
    has to decide.

    replays: the live checkpoints that it covers. live: those among them that were approved at the same gate.
    """
    if len(replays) != 1 or held.rows == "":
        return None
    approved = live.get(replays[0])
    if approved is None or not approved.by_person or approved.judged != held:
        return None
    return replays[0]


def _is_open(view: View, id: int) -> bool:
    entry = view.get(id)
    return entry is not None and entry.open


def _rollbacks_in(view: View) -> list[tuple[int, int, bool]]:
    """Return the completed rollbacks: entry, target, and whether it is a swap."""
    rollbacks = []
    for entry in view.entries:
        if entry.rollback is not None and entry.completed:
            rollbacks.append((entry.id, entry.rollback.target, entry.rollback.line is not None))
    return rollbacks


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

    give_up: open entries that there is a reason to abort, as for a trigger. The swap waits for all other open ones. The
    answer's `base` is the live checkpoint up to which the line has replayed: the last one, which the swap undoes.
    """
    swap_id = entry_of_run(view, line.run)
    if swap_id is not None and _is_open(view, swap_id):
        return Abort(swap_id, SWAP_INTERRUPTED, "it was not decided by the process that created it", counts=False)
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
    swap_id = entry_of_run(view, run)
    if swap_id is not None and _is_open(view, swap_id):
        return Abort(swap_id, LINE_DISCARDED, "the line that it would bring in is being discarded", counts=False)
    return RemoveBackfill(named_by=swap_id)


def spared_for_lines(pins: Sequence[Pin]) -> int | None:
    """Return the lowest live entry that lines need: it and all above it must stay. None if no line is pinned."""
    return min((pin.entry for pin in pins if pin.kind == "line"), default=None)
