"""Backpressure: bound the amount that a checkpoint reads from a source, so that it meets its target duration. Pure.

    seconds per unit   (time − fixed time) / amount of the observed checkpoints: their median, or that of the last few
                       if those were slower. So an outlier has no effect, and the bound falls sooner than it rises
    fixed time         the time for starting, staging and acknowledging: derived from pairs of checkpoints of which one
                       read nothing, or half as much as the other. Without such a pair, the previous value
    at most            (target − fixed time) / seconds per unit. If the fixed time fills most of the target: the amount
                       that takes as long as the fixed time, because smaller checkpoints would only be more frequent
    increase           to GROWTH times the largest amount observed: the cost of far larger amounts is unknown
    decrease           to half of the last attempted amount, after each failure in a row; and once, if checkpoints of
                       about the same amount all take too long: only a smaller one shows how much of it is fixed time

If a checkpoint meets the target, the next one reads the same amount, regardless of the estimated fixed time. So a wrong
estimate costs steps, but causes no oscillation.

The plan records both the observations and the result (records/measures.py). So no history is needed, and the bound can
be explained.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Final

from tidegate.config.keys import KEYS
from tidegate.connectors.adaptive import Adaptive
from tidegate.protocol.view import Entry, View
from tidegate.records.moments import moment_of
from tidegate.records.records import Json, Pace, Timed

__all__ = ["allowed", "fixed_time", "last_ones", "pace_of", "target_of"]

WINDOW: Final = 7
"""The number of checkpoints to remember."""
RECENT: Final = 3
GROWTH: Final = 4
CONTRAST: Final = 2
"""The ratio of amounts from which the fixed time and the time per unit can be told apart."""


def target_of(adaptive: Adaptive, config: Json, timeout_s: float) -> float | None:
    """Return how long a checkpoint should take, or None if the interval between checkpoints is not set."""
    interval = adaptive.interval_s or KEYS["interval"].parse(config.get("interval", "never"))
    if not isinstance(interval, float):
        return None
    return adaptive.share * min(interval, timeout_s)


def _observed_checkpoints(view: View, base: Entry | None, name: str, unit: str) -> list[Timed]:
    """Return the last checkpoints: those that the base's plan used, and those since."""
    before = _pace(base, name)
    by_id: dict[int, Timed] = {}
    if before is not None:
        by_id = {timed.id: timed for timed in before.based_on}
    for entry in view.entries:
        if not entry.completed or entry.rollback is not None:
            continue
        timed = _timed(entry, name, unit)
        if timed is not None:
            by_id[entry.id] = timed
    return last_ones([by_id[id] for id in sorted(by_id)])


def last_ones(timed: list[Timed]) -> list[Timed]:
    """Select the checkpoints to remember: the last ones, and if their amounts are all alike, a contrasting older one.

    That is the last older one that read far more or less, or else the one with the highest contrast.
    """
    last, older = timed[-WINDOW:], timed[:-WINDOW]
    newest = last[-1] if last else None
    if newest is None or not older or any(_ratio(candidate, newest) >= CONTRAST for candidate in last):
        return last
    ratios = [_ratio(candidate, newest) for candidate in older]
    contrasting = []
    for candidate, ratio in zip(older, ratios, strict=True):
        if ratio >= CONTRAST:
            contrasting.append(candidate)
    if contrasting:
        return [contrasting[-1], *last]
    return [older[ratios.index(max(ratios))], *last]


def _ratio(first: Timed, second: Timed) -> float:
    """Return the ratio of the larger amount to the smaller one."""
    smaller, larger = sorted((first.amount, second.amount))
    if smaller:
        return larger / smaller
    return math.inf if larger else 1.0


def _failures(view: View, base: Entry | None, name: str) -> list[int]:
    """Return the amounts of the failed checkpoints after the base, oldest first."""
    low = base.id if base is not None else 0
    amounts = []
    for entry in view.entries:
        if entry.id <= low or entry.decision is None or not entry.decision.counts:
            continue
        pace = _pace(entry, name)
        if pace is not None and pace.planned > 0:
            amounts.append(pace.planned)
    return amounts


def fixed_time(observed: Sequence[Timed], before: float) -> float:
    """Estimate the time that a checkpoint takes regardless of its input. before: the previous estimate."""
    estimates = []
    for smaller, larger in itertools.combinations(sorted(observed, key=lambda timed: timed.amount), 2):
        if _ratio(smaller, larger) >= CONTRAST:
            cost = max(larger.seconds - smaller.seconds, 0.0) / (larger.amount - smaller.amount)
            estimates.append(max(smaller.seconds - cost * smaller.amount, 0.0))
    shortest = min((timed.seconds for timed in observed), default=before)
    estimate = statistics.median(estimates) if estimates else before
    return min(estimate, shortest)


def _fixed_time_unknown(observed: Sequence[Timed], target_s: float, fixed_s: float) -> bool:
    """Return whether checkpoints take too long, and nothing shows yet how much of that depends on the amount.

    If little of it does, reading proportionally less would shrink the checkpoints for hundreds of steps.
    """
    recent = observed[-RECENT:]
    return (
        len(recent) == RECENT
        and fixed_s == 0
        and all(timed.seconds > target_s * 1.001 and timed.amount > 1 for timed in recent)
        and all(_ratio(timed, observed[-1]) < CONTRAST for timed in observed)
    )


def allowed(observed: Sequence[Timed], target_s: float, fixed_s: float, failed: Sequence[int] = ()) -> int | None:
    """Return how much a checkpoint may read, at least 1, or None if nothing is known."""
    costs = []
    for timed in observed[-WINDOW:]:
        if timed.amount > 0:
            costs.append(max(timed.seconds - fixed_s, 1e-9) / timed.amount)
    bound: float | None = None
    if costs:
        cost = max(statistics.median(costs), statistics.median(costs[-RECENT:]))
        bound = max(target_s - fixed_s, min(fixed_s, target_s)) / cost
        bound = min(bound, GROWTH * max(timed.amount for timed in observed))
        if _fixed_time_unknown(observed, target_s, fixed_s):
            bound = min(bound, observed[-1].amount // CONTRAST)
    if failed:
        halved = failed[-1] / 2
        bound = halved if bound is None else min(bound, halved)
    return None if bound is None else max(1, math.ceil(bound))


def pace_of(
    adaptive: Adaptive, name: str, unit: str, view: View, base: Entry | None, config: Json, timeout_s: float
) -> Pace | None:
    """Return the pace of a source for the checkpoint being planned, without the planned amount, which is not known yet.
    None if it needs no pace."""
    target_s = target_of(adaptive, config, timeout_s)
    if target_s is None:
        return None
    observed = _observed_checkpoints(view, base, name, unit)
    failed = _failures(view, base, name)
    before = _pace(base, name)
    fixed_s = fixed_time(observed, before.fixed_s if before is not None else 0.0)
    at_most = allowed(observed, target_s, fixed_s, failed)
    return Pace(
        unit=unit,
        at_most=at_most,
        planned=0,
        target_s=round(target_s, 3),
        fixed_s=round(fixed_s, 3),
        based_on=observed,
        why=_why(at_most, unit, target_s, fixed_s, observed, len(failed)),
    )


def _why(
    at_most: int | None, unit: str, target_s: float, fixed_s: float, observed: Sequence[Timed], failed: int
) -> str:
    if at_most is None:
        return f"only the source's own bound: it is not known yet which amount takes {target_s:g} s"
    text = f"at most {at_most:,} {unit}, so that a checkpoint takes about {target_s:g} s"
    amounts = [timed for timed in observed if timed.amount > 0]
    if amounts:
        text += f": {_times(amounts)} took {sum(timed.seconds for timed in amounts):,.1f} s for "
        text += f"{sum(timed.amount for timed in amounts):,} {unit}"
    if fixed_s:
        text += f"; {fixed_s:.1f} s of it is fixed time"
    if failed:
        text += f"; {_failed(failed)}, so it is half of what was tried"
    return text


def _times(amounts: Sequence[Timed]) -> str:
    if len(amounts) == 1:
        return f"checkpoint {amounts[0].id}"
    return f"{len(amounts)} checkpoints"


def _failed(count: int) -> str:
    if count == 1:
        return "the last one has failed"
    return f"the last {count} have failed"


def _pace(entry: Entry | None, name: str) -> Pace | None:
    part = entry.plan.sources.get(name) if entry is not None else None
    return part.pace if part is not None else None


def _timed(entry: Entry, name: str, unit: str) -> Timed | None:
    """Return the checkpoint's amount and its time from the plan to the last ack, which excludes waiting for a
    person."""
    amount: int | None = None
    ends = []
    for acked in entry.acks.values():
        if name in acked.ack.stats.read:
            amount = getattr(acked.ack.stats.read[name], unit)
        end = moment_of(acked.ack.created)
        if end is not None:
            ends.append(end)
    began = moment_of(entry.plan.created)
    if amount is None or began is None or not ends:
        return None
    seconds = round((max(ends) - began).total_seconds(), 3)
    return Timed(id=entry.id, amount=amount, seconds=max(seconds, 0.0))
