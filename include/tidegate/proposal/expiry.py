"""The end of proposals that nobody works on any more.

A proposal holds hidden tables, and the checkpoint that it has begun after. One that is forgotten, or whose process was
killed, would hold them forever. Its age counts from the last sign of work: its beginning, its newest checkpoint or its
report, by the store's clock.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.backfill.discard import discard_named
from tidegate.errors import TidegateError, name_of
from tidegate.ledger.ledger import folder_ledger
from tidegate.versions.python import parse_time

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext
    from tidegate.coordinator import Coordinator
    from tidegate.records.records import BackfillRecord

__all__ = ["BY", "discard_expired", "idle_seconds", "lifetime"]

log = logging.getLogger(__name__)

BY = "tidegate, because it expired"
CLOCKS_DIFFER = 3600.0
"""Clocks of machines may differ by so much. If by more, a proposal is only removed later."""
SHORTEST = 3600.0
"""A checkpoint that is being replayed is a sign of work only once it is planned, and may take long."""


def idle_seconds(live: PipelineContext, name: str) -> float:
    """Return for how long nobody has worked on a proposal."""
    ledger = live.ledger
    own = folder_ledger(ledger.line_home(name), ledger.pipeline, live.place.options)
    ages = [ledger.store.age(f"lines/{name}/{file}") for file in ("line.json", "report.json")]
    newest = own.entry(own.view().last_id)
    if newest is not None:
        ages.append(own.age(newest.plan))
    return min((age for age in ages if age is not None), default=0.0)


def lifetime(ttl: float) -> float:
    """Return after how many seconds without work a proposal expires."""
    return max(ttl, SHORTEST)


def discard_expired(live: Coordinator, ttl: float | None) -> list[str]:
    """Discard the proposals on which nobody has worked for so many seconds. Return their names.

    An error is only logged: the next call tries again, and nobody waits for it.
    """
    names: list[str] = []
    if ttl is None:
        return names
    for line in _proposals(live):
        try:
            if _is_old(line, ttl) and idle_seconds(live, line.name) > lifetime(ttl):
                discard_named(live, line.name, BY)
                names.append(line.name)
        except Exception as error:  # neither production nor the other proposals stop
            log.warning("Proposal %s has expired and could not be removed: %s", line.name, name_of(error))
    return names


def _is_old(line: BackfillRecord, ttl: float) -> bool:
    """Return whether it was begun so long ago that it may have expired.

    Its record tells, so that production does not ask the store for ages of files after each of its checkpoints.
    """
    age = (seams.now() - parse_time(line.created)).total_seconds()
    return age > lifetime(ttl) - CLOCKS_DIFFER


def _proposals(live: PipelineContext) -> list[BackfillRecord]:
    try:
        return live.ledger.proposals()
    except TidegateError as error:
        log.warning("Proposals that have expired could not be looked for: %s", error.what)
        return []
