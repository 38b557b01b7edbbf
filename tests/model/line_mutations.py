"""What must not be done with lines (docs/protocol.md, section 14), each in the smallest world that shows the damage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from unittest import mock

from tests.model.mutations import Mutation
from tests.model.worlds import (
    DISCARD,
    L1,
    L2,
    LINE,
    LINE_AHEAD,
    LINE_AND_POWER,
    LINE_AND_RETENTION,
    LINE_AND_ROLLBACK,
    LINE_BACK_AND_DISCARDED,
    LINE_BEGUN_TWICE,
    LINE_DISCARD_AND_POWER,
    LINE_DISCARDED,
    LINE_FROM_SAVEPOINT,
    LINE_GAPS,
    LINE_SWAPPED_TWICE,
    LINE_TORN,
    PUBLISHER,
    RETIRER,
    TWO_LINES,
)
from tidegate.protocol import lines, rules
from tidegate.protocol.lines import FillUp, LineProgress, Refuse, Replay, Swapped
from tidegate.protocol.view import View, rolled_back_by

Rollbacks = Iterable[tuple[int, int]]
GiveUp = Mapping[int, str]


def _create(view: View) -> rules.CreateEntry:
    base = view.last_completed
    return rules.CreateEntry(id=view.last_id + 1, base=base.id if base else None, generation=1)


def _whatever_is_open(view: View, line: LineProgress, rollbacks: Rollbacks, give_up: GiveUp) -> object:
    answer = lines.on_swap(view, line, rollbacks, give_up)
    return _create(view) if isinstance(answer, rules.Wait) else answer


def _whatever_is_left(view: View, line: LineProgress, rollbacks: Rollbacks, give_up: GiveUp) -> object:
    answer = lines.on_swap(view, line, rollbacks, give_up)
    return _create(view) if isinstance(answer, Replay) else answer


def _whatever_the_number(view: View, line: LineProgress, rollbacks: Rollbacks, give_up: GiveUp) -> object:
    answer = lines.on_swap(view, line, rollbacks, give_up)
    return _create(view) if isinstance(answer, FillUp) else answer


def _whatever_was_undone(view: View, line: LineProgress, rollbacks: Rollbacks, give_up: GiveUp) -> object:
    """What the line has replayed is taken to count for ever."""
    with mock.patch.object(lines, "rolled_back_by", return_value=None):
        return lines.on_swap(view, line, rollbacks, give_up)


def _whatever_was_swapped_in(view: View, line: LineProgress, rollbacks: Rollbacks, give_up: GiveUp) -> object:
    answer = lines.on_swap(view, line, rollbacks, give_up)
    over_another = isinstance(answer, Refuse) and answer.ids[0] > line.reached and not list(view.still_open())
    return _create(view) if over_another else answer


def _again(view: View, line: LineProgress, rollbacks: Rollbacks, give_up: GiveUp) -> object:
    """A swap that was rolled back is taken for none."""
    answer = lines.on_swap(view, line, rollbacks, give_up)
    if isinstance(answer, Swapped) and rolled_back_by(answer.id, list(rollbacks)) is not None:
        return lines.on_swap(view, replace(line, run="another one"), rollbacks, give_up)
    return answer


def _deaf(view: View, run: str) -> object:
    """An open swap is somebody else's affair."""
    answer = lines.on_discard(view, run)
    return lines.RemoveLine(None) if isinstance(answer, rules.Abort) else answer


LINE_RETIRED = replace(LINE, actors=(L1, PUBLISHER, DISCARD, RETIRER))

LINE_MUTATIONS = [
    # the beginning, and the pins
    Mutation("check the line's origin, then pin it", LINE_AND_RETENTION, "I6: line 0 needs 1"),
    Mutation("unpin an origin that is found retired", LINE_BEGUN_TWICE, "I6: line 0 needs 1"),
    Mutation("look at the origin alone", LINE_FROM_SAVEPOINT, "I6: line 0 needs 2"),
    Mutation("delete at once what has a tombstone", LINE_FROM_SAVEPOINT, "I6: line 0 needs 2"),
    Mutation("the line's pin spares its origin alone", replace(LINE_AND_RETENTION, begun=3), "I6: line 0 needs 2"),
    Mutation(
        "pin the ways back after the decision",
        LINE_RETIRED,
        "there is no way back to",
    ),
    # replay
    Mutation("replay what is not durable", LINE_AND_POWER, "I1"),
    Mutation("read the log before the line", LINE_TORN, "a false alarm"),
    # the swap's entry
    Mutation("take the next free id for the swap", LINE, "is open"),
    Mutation("swap with an open entry below", replace(LINE, on_swap=_whatever_is_open), "is open"),
    Mutation("swap before everything is replayed", replace(LINE, on_swap=_whatever_is_left), "I1"),
    Mutation("swap in what was rolled back", replace(LINE_AND_ROLLBACK, on_swap=_whatever_was_undone), "I1"),
    Mutation("swap over another line", replace(TWO_LINES, origins=(2,), on_swap=_whatever_was_swapped_in), "I1"),
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
