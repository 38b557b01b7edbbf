"""Which backfill a user means, and where it is to begin: the same words for the command and for Airflow's form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import count

from tidegate.backfill.carried import approvals_of
from tidegate.backfill.in_place import outlook_in_place
from tidegate.backfill.open_backfill import (
    Cuts,
    OpenBackfill,
    changes_since,
    problems_of,
    refuse_origin,
    without_shadow,
)
from tidegate.backfill.recorded import RecordedPlans
from tidegate.backfill.results import changed_results
from tidegate.backfill.unchanged import may_differ, unrepeatable
from tidegate.coordinator import Coordinator
from tidegate.errors import Invalid
from tidegate.ledger.ledger import Ledger
from tidegate.lifecycle import savepoint
from tidegate.protocol.view import Entry, rolled_back_by
from tidegate.records.records import BackfillRecord, Json
from tidegate.versions.python import UTC, parse_time

__all__ = [
    "BEGINNING",
    "approvals_text",
    "checkpoint_of",
    "choose_stop",
    "existing_line",
    "free_name",
    "nearest_start",
    "no_backfill",
    "origin_of",
    "outlook",
]

BEGINNING = "beginning"


def existing_line(ledger: Ledger, name: str | None) -> BackfillRecord | None:
    """Return the line of this name, or the one that there is."""
    if name:
        return ledger.line(name) if ledger.line_discarded(name) is None else None
    return next(iter(ledger.lines()), None)


def free_name(ledger: Ledger) -> str:
    """Return a name that no line has had."""
    taken = {*ledger.store.names("lines"), *(pin.owner.removeprefix("line-") for pin in ledger.pins())}
    return next(name for number in count(1) if (name := f"backfill-{number}") not in taken)


def no_backfill(ledger: Ledger, name: str | None) -> Invalid:
    """Return the error for a backfill that is to continue, and is not there."""
    return Invalid(
        f"pipeline {ledger.pipeline!r} has no backfill" + (f" {name!r}" if name else "") + ", and --from is missing",
        expected="--from, to begin one",
        help=f"`tidegate list {ledger.pipeline}` shows the checkpoints that are retained; --from {BEGINNING} computes "
        "everything again",
        reason="NO_BACKFILL",
    )


def origin_of(ledger: Ledger, text: str) -> int:
    """Return the checkpoint to begin after: by its number, a savepoint's name, or the last one before a time; 0: the
    beginning. A time before the first checkpoint is the beginning, as long as that checkpoint is retained."""
    if text == BEGINNING:
        return 0
    moment = _moment(text)
    if moment is not None and ledger.ids()[:1] == [1] and _last_before(ledger, moment) is None:
        return 0
    return checkpoint_of(ledger, text)


def checkpoint_of(ledger: Ledger, text: str) -> int:
    """Return the checkpoint of this number, of this savepoint, or the last one before this time."""
    moment = _moment(text)
    if moment is not None:
        id = _last_before(ledger, moment)
        if id is None:
            raise _none_before(ledger, moment)
        return id
    if text.isdecimal() and 0 < int(text[:20]) < 10**15:
        return int(text)
    return savepoint.find(ledger, text).entry


def _moment(text: str) -> datetime | None:
    """Return the time that a text names. None: it names a checkpoint or a savepoint."""
    if text.isdecimal() and 0 < int(text[:20]) < 10**15:
        return None
    try:
        moment = parse_time(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _last_before(ledger: Ledger, moment: datetime) -> int | None:
    """Return the last checkpoint that counts and was completed before a moment. None: none that is retained."""
    rollbacks = ledger.rollbacks()
    for id in reversed(ledger.ids()):
        completed = _completed(ledger, id, rollbacks)
        if completed is not None and completed < moment:
            return id
    return None


def _none_before(ledger: Ledger, moment: datetime) -> Invalid:
    nearest = nearest_start(ledger)
    since = f"; the first that is goes back to {nearest:%Y-%m-%d %H:%M:%S} UTC" if nearest is not None else ""
    return Invalid(
        f"pipeline {ledger.pipeline!r} has no checkpoint from before {moment:%Y-%m-%d %H:%M} UTC that is retained",
        expected=f"one that is retained{since}",
        help=f"`tidegate list {ledger.pipeline}` shows the choices; --from {BEGINNING} computes everything again; the "
        "setting retain_per_day keeps one of each day from now on",
        reason="NO_SUCH_CHECKPOINT",
    )


def nearest_start(ledger: Ledger) -> datetime | None:
    """Return the first moment before which there is a checkpoint to begin after; None: there is none at all."""
    rollbacks = ledger.rollbacks()
    completed = (_completed(ledger, id, rollbacks) for id in ledger.ids())
    first = next((moment for moment in completed if moment is not None), None)
    return first.replace(microsecond=0) + timedelta(seconds=1) if first is not None else None


def _completed(ledger: Ledger, id: int, rollbacks: Sequence[tuple[int, int]]) -> datetime | None:
    """Return when a checkpoint was completed; None: it was not, or does not count any more."""
    decision = ledger.decision(id)
    if decision is None or decision.manifest is None or rolled_back_by(id, rollbacks) is not None:
        return None
    return parse_time(decision.created)


def choose_stop(line: OpenBackfill, text: str) -> Entry:
    """Return the pipeline's checkpoint at which a line is to stop, for a look."""
    endless = [name for name, sourcing in line.backfill.graph.sources.items() if not sourcing.source.can_stop]
    name = line.live.ledger.pipeline
    if endless:
        raise Invalid(
            f"source {endless[0]!r} of pipeline {name!r} cannot stop where another checkpoint stopped",
            expected="sources that can, for --to",
            help="leave out --to; a source of your own needs `can_stop` and `context.until` (see the guide on sources)",
            reason="CANNOT_STOP",
        )
    id = checkpoint_of(line.live.ledger, text)
    entry = line.live.real_entry(id)
    if entry is None or not entry.completed or not line.is_stop_candidate(id):
        raise Invalid(
            f"backfill {line.name!r} of pipeline {name!r} cannot stop at checkpoint {id}",
            expected=f"one that counts, and not below {line.progress().rests_on}, up to which it has planned already",
            help=f"`tidegate list {name}` shows the choices; without --to it reads all there is",
            reason="NO_SUCH_CHECKPOINT",
        )
    return entry


def approvals_text(found: Json) -> Iterator[str]:
    """Describe what becomes of the approvals that gates have had since a backfill's origin."""
    if found["carried_over"]:
        yield f"{found['carried_over']} of a person carry over where the code gives the same rows"
    if found["to_repeat"]:
        yield f"{found['to_repeat']} are asked for again: of the time limit, of other cuts, or of unknown rows"


def outlook(live: Coordinator, origin: int, cuts: Cuts = "own", *, drops_by_hand: bool = False) -> Json:
    """Return what a backfill from checkpoint `origin` would read and change, what may differ though the code has not
    changed, and why it is impossible, if it is. Nothing is written."""
    name = live.ledger.pipeline
    refuse_origin(live.ledger, origin)
    _, changes = changes_since(live, origin)
    problems = problems_of(live, origin, cuts, drops_by_hand=drops_by_hand)
    recorded = RecordedPlans(live.ledger, origin)
    last = live.ledger.view().last_completed
    plans = recorded.counting() if any(gated.gate.policies & {"hold"} for gated in live.graph.gates) else []
    approved = list(approvals_of(live.ledger, plans))
    carry = [each for *each, may_carry in approved if may_carry and cuts == "recorded"]
    in_place = outlook_in_place(recorded, live.graph, live.place)
    return {
        "pipeline": name,
        "from": origin,
        "to": last.id if last is not None else None,
        "tables": [change.table for change in changes if change.table in live.graph.sinks],
        "unchanged_sinks": without_shadow(live.graph),
        "cuts": cuts,
        "manual_edits": [
            {
                "checkpoint": plan.id,
                "changed_by": plan.by_hand.by if plan.by_hand is not None else plan.run,
                "operator": plan.by_hand.operator if plan.by_hand is not None else None,
                "action": plan.by_hand.action if plan.by_hand is not None else None,
            }
            for plan in recorded.manual_edits()
        ],
        "approvals": {"carried_over": len(carry), "to_repeat": len(approved) - len(carry)},
        "released_in_place": list(in_place) if cuts == "recorded" else [],
        "may_differ": [*unrepeatable(live.graph), *may_differ(live, recorded, cuts)],
        "changed_results": list(changed_results(live)),
        "problems": problems,
        "possible": not problems,
    }
