"""Interprets a user's choice of a backfill, its origin and its end, for the command and for Airflow's form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

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
from tidegate.protocol.view import Entry, rollback_of
from tidegate.records.records import BackfillRecord, Json, Plan
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
    """Return the backfill or proposal with this name, or the only backfill."""
    if name:
        if ledger.line_discarded(name) is None:
            return ledger.line(name)
        return None
    return next(iter(ledger.backfills()), None)


def free_name(ledger: Ledger, kind: str = "backfill") -> str:
    """Return a name that no backfill or proposal has had."""
    used_names = set(ledger.store.names("lines"))
    for pin in ledger.pins():
        used_names.add(pin.owner.removeprefix("line-"))
    number = 1
    while f"{kind}-{number}" in used_names:
        number += 1
    return f"{kind}-{number}"


def no_backfill(ledger: Ledger, name: str | None) -> Invalid:
    """Return the error for a backfill that is to be continued but does not exist."""
    backfill = f"backfill {name!r}" if name else "backfill"
    return Invalid(
        f"pipeline {ledger.pipeline!r} has no {backfill}, and --from is missing",
        expected="--from, to begin one",
        help=f"`tidegate list {ledger.pipeline}` shows the checkpoints that are retained; --from {BEGINNING} computes "
        "everything again",
        reason="NO_BACKFILL",
    )


def origin_of(ledger: Ledger, text: str) -> int:
    """Return the checkpoint to begin after: the one with this number or savepoint's name, or the last one before this
    time. 0 is the beginning.

    A time before the first checkpoint is the beginning, as long as that checkpoint is retained.
    """
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
    """Return the time in this text, or None if it names a checkpoint or a savepoint."""
    if text.isdecimal() and 0 < int(text[:20]) < 10**15:
        return None
    try:
        moment = parse_time(text)
    except ValueError:
        return None
    if moment.tzinfo:
        return moment
    return moment.replace(tzinfo=UTC)


def _last_before(ledger: Ledger, moment: datetime) -> int | None:
    """Return the last retained checkpoint that counts and was completed before this moment."""
    rollbacks = ledger.rollbacks()
    for id in reversed(ledger.ids()):
        completed = _completed(ledger, id, rollbacks)
        if completed is not None and completed < moment:
            return id
    return None


def _none_before(ledger: Ledger, moment: datetime) -> Invalid:
    expected = "one that is retained"
    nearest = nearest_start(ledger)
    if nearest is not None:
        expected += f"; the first one allows to begin at {nearest:%Y-%m-%d %H:%M:%S} UTC"
    return Invalid(
        f"pipeline {ledger.pipeline!r} has no checkpoint from before {moment:%Y-%m-%d %H:%M} UTC that is retained",
        expected=expected,
        help=f"`tidegate list {ledger.pipeline}` shows the choices; --from {BEGINNING} computes everything again; the "
        "setting retain_per_day retains one of each day from now on",
        reason="NO_SUCH_CHECKPOINT",
    )


def nearest_start(ledger: Ledger) -> datetime | None:
    """Return the first moment with a checkpoint before it to begin after, or None if no checkpoint qualifies."""
    rollbacks = ledger.rollbacks()
    for id in ledger.ids():
        completed = _completed(ledger, id, rollbacks)
        if completed is not None:
            return completed.replace(microsecond=0) + timedelta(seconds=1)
    return None


def _completed(ledger: Ledger, id: int, rollbacks: Sequence[tuple[int, int]]) -> datetime | None:
    """Return when a checkpoint was completed. None if it was not, or no longer counts."""
    decision = ledger.decision(id)
    if decision is None or decision.manifest is None or rollback_of(id, rollbacks) is not None:
        return None
    return parse_time(decision.created)


def choose_stop(line: OpenBackfill, text: str) -> Entry:
    """Return the pipeline's checkpoint at which a backfill is to stop, for inspection."""
    unstoppable = [name for name, sourcing in line.backfill.graph.sources.items() if not sourcing.source.can_stop]
    name = line.live.ledger.pipeline
    if unstoppable:
        raise Invalid(
            f"source {unstoppable[0]!r} of pipeline {name!r} cannot stop where another checkpoint stopped",
            expected="sources that can, for --to",
            help="omit --to; a source of your own needs `can_stop` and `context.stop_position` (guide on sources)",
            reason="CANNOT_STOP",
        )
    id = checkpoint_of(line.live.ledger, text)
    entry = line.live.real_entry(id)
    if entry is None or not entry.completed or not line.is_stop_candidate(id):
        raise Invalid(
            f"backfill {line.name!r} of pipeline {name!r} cannot stop at checkpoint {id}",
            expected=f"one that counts, and not below {line.progress().rests_on}, up to which it has already planned",
            help=f"`tidegate list {name}` shows the choices; without --to it reads all input",
            reason="NO_SUCH_CHECKPOINT",
        )
    return entry


def approvals_text(approvals: Json) -> Iterator[str]:
    """Describe which approvals since a backfill's origin carry over, and which do not."""
    if approvals["carried_over"]:
        yield f"{approvals['carried_over']} of a person carry over where the code makes the same rows"
    if approvals["to_repeat"]:
        yield f"{approvals['to_repeat']} have to be repeated: of the time limit, of other cuts, or of unknown rows"


def outlook(live: Coordinator, origin: int, cuts: Cuts = "own", *, drops_by_hand: bool = False) -> Json:
    """Return what a backfill from checkpoint `origin` would read and change, what may differ with unchanged code, and
    the reasons for which it is impossible. Writes nothing."""
    name = live.ledger.pipeline
    refuse_origin(live.ledger, origin)
    _, changes = changes_since(live, origin)
    problems = problems_of(live, origin, cuts, drops_by_hand=drops_by_hand)
    recorded = RecordedPlans(live.ledger, origin)
    last = live.ledger.view().last_completed
    carried_over = to_repeat = 0
    if any(gated.gate.policies & {"hold"} for gated in live.graph.gates):
        for _, _, may_carry_over in approvals_of(live.ledger, recorded.counting()):
            if may_carry_over and cuts == "recorded":
                carried_over += 1
            else:
                to_repeat += 1
    in_place = outlook_in_place(recorded, live.graph, live.place)
    return {
        "pipeline": name,
        "from": origin,
        "to": last.id if last is not None else None,
        "tables": [change.table for change in changes if change.table in live.graph.sinks],
        "unchanged_sinks": without_shadow(live.graph),
        "cuts": cuts,
        "manual_edits": [_edit_document(plan) for plan in recorded.manual_edits()],
        "approvals": {"carried_over": carried_over, "to_repeat": to_repeat},
        "released_in_place": list(in_place) if cuts == "recorded" else [],
        "may_differ": [*unrepeatable(live.graph), *may_differ(live, recorded, cuts)],
        "changed_results": list(changed_results(live)),
        "problems": problems,
        "possible": not problems,
    }


def _edit_document(plan: Plan) -> Json:
    edit = plan.by_hand
    if edit is None:  # an earlier version made it
        return {"checkpoint": plan.id, "changed_by": plan.run, "operator": None, "action": None}
    return {"checkpoint": plan.id, "changed_by": edit.by, "operator": edit.operator, "action": edit.action}
