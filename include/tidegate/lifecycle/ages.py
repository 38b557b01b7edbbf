"""Find the checkpoints that retention spares in addition to `num_retained`: young ones, and the last few of each day.

    retain_for        checkpoints completed within this time stay
    retain_per_day    the number of older checkpoints that stay per day (UTC): the last ones,
    retain_days       for this number of days, counting only days with checkpoints

The daily checkpoints are pinned, like savepoints. So they can be rolled back to, and the files that they name stay, by
the rules for every pin. Whether a checkpoint is one of its day's last is computed from the existing ones each time; no
count is stored.

Days come from the clocks of the deciders, which may be wrong by an hour or by years. So these clocks alone never
release a checkpoint: the time must have passed by the store's clock as well. And a checkpoint dated next month adds one
day, not thirty.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from tidegate import seams
from tidegate.config.keys import KEYS
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.protocol.view import rollback_of
from tidegate.records.names import entry_name
from tidegate.records.records import Json, Pin
from tidegate.versions.python import parse_time

__all__ = ["Ages", "DatedCheckpoints"]

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Ages:
    """The settings of retention by age, and the checkpoints that they spare."""

    young_s: float = 0.0
    per_day: int = 0
    days: int = 0

    @property
    def spare_none(self) -> bool:
        """True if no checkpoint stays because of its age."""
        return not self.young_s and not self.per_day

    @staticmethod
    def from_settings(settings: Json) -> Ages:
        """Return the settings as a plan records them. A missing one has its default."""
        keys = (KEYS[name] for name in ("retain_for", "retain_per_day", "retain_days"))
        return Ages(*(key.parse(settings.get(key.name, key.default)) for key in keys))

    def old(self, ledger: Ledger, ids: Sequence[int]) -> list[int]:
        """Return the ids that are not young, by the store's clock. (Checkpoints are decided in the order of their
        ids.)"""
        if not self.young_s:
            return list(ids)
        return list(itertools.takewhile(lambda id: not self._is_young(ledger, id), ids))

    def pin_days(self, checkpoints: DatedCheckpoints, ids: Sequence[int]) -> set[int]:
        """Pin the checkpoints that are retained for their day. Return them."""
        if not self.per_day:
            return set()
        pinned = set()
        for id in ids:
            if self._is_last_of_its_day(checkpoints, id) and self._pin(checkpoints.ledger, id, checkpoints.days[id]):
                pinned.add(id)
        return pinned

    def unpin_days(self, checkpoints: DatedCheckpoints, pins: list[Pin]) -> list[Pin]:
        """Unpin daily checkpoints that are too old or rolled back, or no longer retained by changed settings.

        Return the remaining pins.
        """
        outdated = []
        for pin in pins:
            if pin.kind == "day" and not self._is_last_of_its_day(checkpoints, pin.entry):
                outdated.append(pin)
        for pin in outdated:
            checkpoints.ledger.delete_pin(pin.owner)
        return [pin for pin in pins if pin not in outdated]

    def _is_young(self, ledger: Ledger, id: int) -> bool:
        age = ledger.age_of_decision(id)
        return age is not None and age < self.young_s

    def _is_last_of_its_day(self, checkpoints: DatedCheckpoints, id: int) -> bool:
        """Return whether a checkpoint is one of the last of its day, and that day is recent enough."""
        day = checkpoints.days.get(id) if self.per_day else None
        if day is None:
            return False
        later = {}
        for later_id, later_day in checkpoints.days.items():
            if later_id > id:
                later[later_id] = later_day
        later_days = {later_day for later_day in later.values() if later_day > day}
        if len(later_days) > self.days and checkpoints.has_elapsed(id, None, self.days * _DAY_S):
            return False
        if list(later.values()).count(day) < self.per_day:
            return True
        return checkpoints.has_elapsed(id, sorted(later)[self.per_day - 1], _DAY_S)

    def _pin(self, ledger: Ledger, id: int, day: date) -> bool:
        """Create the pin, then check for the tombstone, as with every reference to a checkpoint. Return whether it
        holds."""
        decision = ledger.decision(id)
        if decision is None or decision.manifest is None:
            return False  # another process is retiring it
        owner = f"day-{entry_name(id)}"
        record_stamp = stamp(seams.new_id())
        ledger.create_pin(
            Pin(
                **record_stamp,
                owner=owner,
                kind="day",
                entry=id,
                manifest=decision.manifest,
                by="retention",
                note=day.isoformat(),
            )
        )
        if ledger.is_retained(id):
            return True
        ledger.delete_pin(owner)
        return False


class DatedCheckpoints:
    """The existing checkpoints that can be rolled back to, each with its day. Read once per clean-up.

    pins: all pins. Those of days contain the day, so that the records of their checkpoints need not be read for it.
    """

    def __init__(self, ledger: Ledger, pins: Sequence[Pin] = ()) -> None:
        self.ledger = ledger
        self._pins = pins

    @functools.cached_property
    def days(self) -> dict[int, date]:
        """The day of each checkpoint, by the clock of its decider."""
        rollbacks = self.ledger.rollbacks()
        pinned = {pin.entry: pin.note for pin in self._pins if pin.kind == "day" and pin.note}
        days = {}
        for id in self.ledger.ids():
            day = _day_of(self.ledger, id, rollbacks, pinned.get(id, ""))
            if day is not None:
                days[id] = day
        return days

    def has_elapsed(self, id: int, later: int | None, seconds: float) -> bool:
        """Return whether at least this time passed between two checkpoints, or since one, by the store's clock.

        False if one of them no longer exists.
        """
        age = self.ledger.age_of_decision(id)
        later_age = 0.0 if later is None else self.ledger.age_of_decision(later)
        return age is not None and later_age is not None and age - later_age >= seconds


def _day_of(ledger: Ledger, id: int, rollbacks: Sequence[tuple[int, int]], pinned: str) -> date | None:
    """Return the day on which a checkpoint was completed, or None if it cannot be rolled back to.

    pinned: the day in its pin, or empty. The other conditions were checked when the pin was created.
    """
    if pinned:
        counts = ledger.has_plan(id) and rollback_of(id, rollbacks) is None
        return date.fromisoformat(pinned) if counts else None
    decision = ledger.decision(id)
    if decision is None or decision.outcome != "completed" or rollback_of(id, rollbacks) is not None:
        return None
    plan = ledger.plan(id)
    if plan is None or plan.rollback is not None or ledger.published(id) is None:
        return None
    return parse_time(decision.created).date()
