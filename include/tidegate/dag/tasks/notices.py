"""Tells people what has become of a pipeline, through Airflow's notifiers: `build_dag(…, notify={"held": […]})`.

A notifier gets Airflow's context with `tidegate`, so its templates may say `{{ tidegate.event }}`,
`{{ tidegate.pipeline }}`, `{{ tidegate.checkpoint }}` and `{{ tidegate.summary }}`. None of them quotes a row. A
notifier that raises, or does not answer, is reported in the task's log and never holds up a checkpoint.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from msgspec import structs

from tidegate import seams
from tidegate.errors import Invalid, name_of
from tidegate.history.promises import promises_now
from tidegate.history.schemas.drift import news_of
from tidegate.ledger.ledger import stamp
from tidegate.records.records import HookProgress

if TYPE_CHECKING:
    from tidegate.ledger.ledger import Ledger
    from tidegate.protocol.view import Entry

__all__ = [
    "EVENTS",
    "Event",
    "Notice",
    "Notifiers",
    "about_completed",
    "checked_notifiers",
    "send_notice",
    "send_promise_notices",
]

Event = Literal["held", "suspended", "quarantined", "drifted", "recovered", "stale", "fresh"]
EVENTS: Final[tuple[Event, ...]] = get_args(Event)

Notifiers = Mapping[Event, Sequence[Callable[[Any], Any]]]

LIMIT_S: Final = 20.0
"""How long all notifiers of one event may take together. Then the task continues without them."""

TELLING_S: Final = 120.0
"""After which somebody who tells people of promises is taken for dead. All notifiers of all promises take less."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Notice:
    """What a notifier is told, as `tidegate` in its context."""

    event: Event
    pipeline: str
    checkpoint: int | None
    summary: str
    """In a sentence, without values of rows."""


def checked_notifiers(given: object) -> Notifiers:
    """Return build_dag's argument `notify`: by event, a list of notifiers. One alone may stand without a list."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not set(given) <= set(EVENTS):
        if isinstance(given, Mapping):
            found = f"events {', '.join(map(repr, given))}"
        else:
            found = repr(given)
        raise _bad_argument(f"notify is given {found}")
    notifiers: dict[Event, Sequence[Callable[[Any], Any]]] = {}
    for event, listed in given.items():
        several = list(listed) if isinstance(listed, list | tuple) else [listed]
        for notifier in several:
            if not callable(notifier):
                raise _bad_argument(f"notify has {notifier!r} for {event!r}")
        notifiers[event] = several
    return notifiers


def send_notice(notifiers: Notifiers, context: Any, notice: Notice) -> bool:
    """Call the notifiers of this event, one after the other. Never raises.

    Return False if people may not know of it: each has failed, or they have not ended in time.
    """
    chosen = notifiers.get(notice.event, ())
    if not chosen:
        return True
    failed: list[Callable[[Any], Any]] = []
    # A thread: nobody else can end a call to a server that does not answer.
    thread = threading.Thread(target=_call, args=(chosen, context, notice, failed), daemon=True, name="notices")
    began = seams.monotonic()
    thread.start()
    thread.join(LIMIT_S)
    if thread.is_alive():
        log.warning(
            "Notifiers of %r have not ended within %g s: the task continues without them", notice.event, LIMIT_S
        )
        return False
    log.info("Notifiers of %r: %d called in %.1f s", notice.event, len(chosen), seams.monotonic() - began)
    return len(failed) < len(chosen)


def about_completed(entry: Entry, ledger: Ledger) -> Iterable[Notice]:
    """Return what there is to tell about a checkpoint that has just been completed."""
    pipeline = ledger.pipeline
    quarantined = {}
    for acked in entry.acks.values():
        for gate, verdict in acked.ack.gates.items():
            if verdict.quarantined:
                quarantined[gate] = verdict.quarantined
    if quarantined:
        rows = ", ".join(f"{count:,} rows at gate {gate}" for gate, count in sorted(quarantined.items()))
        yield Notice("quarantined", pipeline, entry.id, f"checkpoint {entry.id} has quarantined {rows}")
    for name, part in entry.plan.sources.items():
        found = [acked.ack.drift[name] for acked in entry.acks.values() if name in acked.ack.drift]
        if part.schema is not None and found and (summary := news_of(part.schema, found[0], entry.id)):
            yield Notice("drifted", pipeline, entry.id, f"checkpoint {entry.id} has found at source {name}: {summary}")
    failures = _failures_before(entry, ledger)
    if failures:
        before = "1 aborted one" if failures == 1 else f"{failures} aborted ones"
        yield Notice("recovered", pipeline, entry.id, f"checkpoint {entry.id} is completed, after {before}")


def send_promise_notices(
    notifiers: Notifiers, context: Any, ledger: Ledger, tolerable: int, *, again_if_failed: bool = False
) -> None:
    """Tell people of promises that are broken, once, and of those that are kept again. Never raises.

    again_if_failed: whether the next one who looks tells people again if all notifiers fail here.
    """
    if not {"stale", "fresh"} & notifiers.keys():
        return
    try:
        if not _is_anything_untold(ledger, tolerable):
            return
        with ledger.telling(TELLING_S) as is_my_turn:
            if is_my_turn:
                _send_untold(notifiers, context, ledger, tolerable, again_if_failed=again_if_failed)
            else:
                log.info("Somebody else is telling people of promises: the next task looks again")
    except Exception as error:
        log.warning("Could not see whether promises are kept: %r. The next task looks again", error)


def _is_anything_untold(ledger: Ledger, tolerable: int) -> bool:
    told = ledger.hook_progress()
    broken = [promise.sink for promise in promises_now(ledger, tolerable) if not promise.is_kept]
    return broken != (told.broken_promises if told is not None else [])


def _send_untold(notifiers: Notifiers, context: Any, ledger: Ledger, tolerable: int, *, again_if_failed: bool) -> None:
    """Tell what has not been told yet, and record that. Nobody else does at the same time."""
    told = ledger.hook_progress()
    before = told.broken_promises if told is not None else []
    broken = []
    for promise in promises_now(ledger, tolerable):
        event: Event = "fresh" if promise.is_kept else "stale"
        is_known = promise.is_kept != (promise.sink in before)
        if not is_known:
            notice = Notice(event, ledger.pipeline, promise.checkpoint, promise.text)
            is_known = send_notice(notifiers, context, notice) or not again_if_failed
        if promise.is_kept != is_known:  # as it is, or as it was
            broken.append(promise.sink)
    if broken != before:
        told = ledger.hook_progress() or HookProgress(**stamp(seams.new_id()))
        ledger.record_hook_progress(structs.replace(told, **stamp(seams.new_id()), broken_promises=broken))


def _failures_before(entry: Entry, ledger: Ledger) -> int:
    """Return how many checkpoints in a row were aborted before this one, whatever people did in between."""
    count = 0
    for id in reversed(ledger.ids()):
        earlier = ledger.entry(id) if id < entry.id else None
        if earlier is None or earlier.control is not None:
            continue
        if not earlier.aborted:
            break
        count += 1
    return count


def _call(
    notifiers: Sequence[Callable[[Any], Any]], context: Any, notice: Notice, failed: list[Callable[[Any], Any]]
) -> None:
    for notifier in notifiers:
        try:
            # A notifier fills in its own templates: the next notice needs them as they were.
            copy.copy(notifier)({**context, "tidegate": asdict(notice)})
        except Exception as error:
            failed.append(notifier)
            log.warning("A notifier of %r has failed: %s", notice.event, name_of(error))


def _bad_argument(what: str) -> Invalid:
    return Invalid(
        f"build_dag: {what}",
        expected=f"for each event ({', '.join(EVENTS)}) notifiers of Airflow, such as SmtpNotifier(…)",
        help="correct it in the DAG file",
        reason="BAD_ARGUMENT",
    )
