"""Backpressure: how much of a source a checkpoint takes, so that it lasts about as long as it should. Pure.

    seconds per unit   (time − fixed time) / amount of the checkpoints that were seen: their median, or that of the last
                       few, if these were slower. So one that is odd makes no difference; down it goes sooner than up
    fixed time         what starting, staging and acknowledging take anyway: told by checkpoints that took twice as much
                       as others, or nothing. As long as there are none such, what was known before
    at most            (target − fixed time) / seconds per unit; if the fixed time fills most of the target, as much as
                       lasts as long again: less would only have it come the more often
    up                 to GROWTH times the most that was seen: what lies far beyond is not known
    down               to half of what the last one wanted, after each failure in a row

Where a checkpoint lasts as long as it should, the next one takes as much, whatever is held for the fixed time: so a
wrong guess of it costs steps, and nothing goes back and forth.

What it goes by is in the plan, with what it decided (records/records.py): so it needs no history, and can be explained.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.config.keys import KEYS
from tidegate.protocol.view import Entry, View
from tidegate.records.moments import moment_of
from tidegate.records.records import Json, Pace, Timed
from tidegate.sources.adaptive import Adaptive

__all__ = ["allowed", "fixed_time", "last_ones", "pace_of", "target_of"]

WINDOW: Final = 7
"""So many checkpoints are remembered."""
RECENT: Final = 3
GROWTH: Final = 4
CONTRAST: Final = 2
"""How many times as much tells what comes with the amount, and what does not."""


def target_of(adaptive: Adaptive, config: Json, timeout_s: float) -> float | None:
    """How long a checkpoint should take. None: nobody says how often there is one."""
    interval = adaptive.interval_s or KEYS["interval"].parse(config.get("interval", "never"))
    return None if interval is None else adaptive.share * min(interval, timeout_s)


def _seen(view: View, base: Entry | None, name: str, unit: str) -> list[Timed]:
    """What the base's plan went by, and the checkpoints since, the last ones."""
    before = _pace(base, name)
    known = {each.id: each for each in (before.seen if before is not None else ())}
    for entry in view.entries:
        if entry.completed and entry.restart is None and (timed := _timed(entry, name, unit)) is not None:
            known[entry.id] = timed
    return last_ones([known[id] for id in sorted(known)])


def last_ones(known: list[Timed]) -> list[Timed]:
    """What is remembered: the last ones, and if these are all alike, one before them that was not. That is the last one
    that took far more or less; as long as there is none, the one that comes nearest to it."""
    last, older = known[-WINDOW:], known[:-WINDOW]
    if not older or any(_ratio(each, last[-1]) >= CONTRAST for each in last):
        return last
    far = [each for each in older if _ratio(each, last[-1]) >= CONTRAST]
    return [far[-1] if far else max(older, key=lambda each: _ratio(each, last[-1])), *last]


def _ratio(one: Timed, other: Timed) -> float:
    """How many times as much the one has taken that took more."""
    less, more = sorted((one.amount, other.amount))
    return more / less if less else math.inf if more else 1.0


def _failures(view: View, base: Entry | None, name: str) -> list[int]:
    """The amounts of the checkpoints behind the base that have failed, oldest first."""
    low = base.id if base is not None else 0
    failed = [
        entry for entry in view.entries if entry.id > low and entry.decision is not None and entry.decision.counts
    ]
    return [pace.taken for entry in failed if (pace := _pace(entry, name)) is not None and pace.taken > 0]


def fixed_time(seen: Sequence[Timed], before: float) -> float:
    """What a checkpoint takes whatever it reads. before: what was known of it so far."""
    told = []
    for one, other in itertools.combinations(sorted(seen, key=lambda each: each.amount), 2):
        if _ratio(one, other) >= CONTRAST:
            cost = max(other.seconds - one.seconds, 0.0) / (other.amount - one.amount)
            told.append(max(one.seconds - cost * one.amount, 0.0))
    least = min((each.seconds for each in seen), default=before)
    return min(statistics.median(told) if told else before, least)


def allowed(seen: Sequence[Timed], target_s: float, fixed_s: float, failed: Sequence[int] = ()) -> int | None:
    """How much a checkpoint may take, at least 1. None: nothing is known."""
    costs = [max(each.seconds - fixed_s, 1e-9) / each.amount for each in seen[-WINDOW:] if each.amount > 0]
    bound: float | None = None
    if costs:
        cost = max(statistics.median(costs), statistics.median(costs[-RECENT:]))
        bound = max(target_s - fixed_s, min(fixed_s, target_s)) / cost
        bound = min(bound, GROWTH * max(each.amount for each in seen))
    if failed:
        halved = failed[-1] / 2
        bound = halved if bound is None else min(bound, halved)
    return None if bound is None else max(1, math.ceil(bound))


def pace_of(
    adaptive: Adaptive, name: str, unit: str, view: View, base: Entry | None, config: Json, timeout_s: float
) -> Pace | None:
    """What a source may give the checkpoint that is planned; `taken` is not known yet. None: there is nothing to go by,
    nor will there be."""
    target_s = target_of(adaptive, config, timeout_s)
    if target_s is None:
        return None
    seen, failed, before = _seen(view, base, name, unit), _failures(view, base, name), _pace(base, name)
    fixed_s = fixed_time(seen, before.fixed_s if before is not None else 0.0)
    at_most = allowed(seen, target_s, fixed_s, failed)
    return Pace(
        unit=unit,
        at_most=at_most,
        taken=0,
        target_s=round(target_s, 3),
        fixed_s=round(fixed_s, 3),
        seen=seen,
        why=_why(at_most, unit, target_s, fixed_s, seen, len(failed)),
    )


def _why(at_most: int | None, unit: str, target_s: float, fixed_s: float, seen: Sequence[Timed], failed: int) -> str:
    if at_most is None:
        return f"no bound but the source's own: it is not known yet what takes {target_s:g} s"
    told = f"at most {at_most:,} {unit}, so that a checkpoint takes about {target_s:g} s"
    amounts = [each for each in seen if each.amount > 0]
    if amounts:
        told += f": {_times(amounts)} took {sum(each.seconds for each in amounts):,.1f} s for "
        told += f"{sum(each.amount for each in amounts):,} {unit}"
    if fixed_s:
        told += f"; {fixed_s:.1f} s it takes anyway"
    return told + (f"; {_failed(failed)}, so it is half of what was tried" if failed else "")


def _times(amounts: Sequence[Timed]) -> str:
    return f"checkpoint {amounts[0].id}" if len(amounts) == 1 else f"{len(amounts)} checkpoints"


def _failed(count: int) -> str:
    return "the last one has failed" if count == 1 else f"the last {count} have failed"


def _pace(entry: Entry | None, name: str) -> Pace | None:
    part = entry.plan.sources.get(name) if entry is not None else None
    return part.pace if part is not None else None


def _timed(entry: Entry, name: str, unit: str) -> Timed | None:
    """How long it took from its plan to its last ack: whoever was asked by a gate then is not waited for."""
    told: Mapping[str, int | None] = {
        source: getattr(amount, unit)
        for acked in entry.acks.values()
        for source, amount in acked.ack.stats.taken.items()
    }
    ends = [moment for acked in entry.acks.values() if (moment := moment_of(acked.ack.created)) is not None]
    began, amount = moment_of(entry.plan.created), told.get(name)
    if amount is None or began is None or not ends:
        return None
    return Timed(id=entry.id, amount=amount, seconds=max(round((max(ends) - began).total_seconds(), 3), 0.0))
