"""What retention spares beyond `num_retained`: what is young, and of what is older so many checkpoints a day.

    retain_for        what was completed within this time stays
    retain_per_day    of what is older, the last so many of each day (UTC) stay,
    retain_days       for so many days, of those on which there was any

What a day keeps is pinned, like a savepoint: so it can be gone back to, and nothing that it names is removed, by the
rules that hold for every pin. Whether it is the day's last is told by what is there, each time; no count is stored.

Days are told by the clocks of those who decided checkpoints, and these may be wrong, by an hour or by years. So they
alone let nothing go: that the time has passed has to be true by the store's clock as well; and one checkpoint that
claims to be of next month is one day more, not thirty.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from tidegate import seams
from tidegate.config.keys import KEYS
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.protocol.view import rolled_back_by
from tidegate.records.names import entry_name
from tidegate.records.records import Json, Pin

__all__ = ["Ages", "DatedCheckpoints"]

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Ages:
    """The settings, and what follows from them."""

    young_s: float = 0.0
    per_day: int = 0
    days: int = 0

    @staticmethod
    def of(settings: Json) -> Ages:
        """As a plan keeps them. A setting that it does not have is at its default."""
        keys = (KEYS[name] for name in ("retain_for", "retain_per_day", "retain_days"))
        return Ages(*(key.parse(settings.get(key.name, key.default)) for key in keys))

    def old(self, ledger: Ledger, ids: Sequence[int]) -> list[int]:
        """Those that are not young, by the store's clock: checkpoints are decided in the order of their ids."""
        return list(itertools.takewhile(lambda id: not self._is_young(ledger, id), ids)) if self.young_s else list(ids)

    def pin_days(self, line: DatedCheckpoints, ids: Sequence[int]) -> set[int]:
        """Pin those of these that their day keeps; answers with them."""
        if not self.per_day:
            return set()
        return {id for id in ids if self._is_kept(line, id) and self._pin(line.ledger, id)}

    def unpin_days(self, line: DatedCheckpoints, pins: list[Pin]) -> list[Pin]:
        """Let go of what its day keeps no longer: it is too old, or was rolled back, or settings have changed. Answers
        with the pins that are left."""
        gone = [pin for pin in pins if pin.kind == "day" and not self._is_kept(line, pin.entry)]
        for pin in gone:
            line.ledger.delete_pin(pin.owner)
        return [pin for pin in pins if pin not in gone]

    def _is_young(self, ledger: Ledger, id: int) -> bool:
        age = ledger.age_of_decision(id)
        return age is not None and age < self.young_s

    def _is_kept(self, line: DatedCheckpoints, id: int) -> bool:
        """Whether it is one of the last of its day, and that is not too long ago."""
        day = line.days.get(id) if self.per_day else None
        if day is None:
            return False
        later = {other: found for other, found in line.days.items() if other > id}
        days = len({found for found in later.values() if found > day})
        if days > self.days and line.apart(id, None, self.days * _DAY_S):
            return False
        if sum(found == day for found in later.values()) < self.per_day:
            return True
        return line.apart(id, sorted(later)[self.per_day - 1], _DAY_S)

    def _pin(self, ledger: Ledger, id: int) -> bool:
        """Own mark first, then the other's, like everybody who refers to a checkpoint."""
        decision = ledger.decision(id)
        if decision is None or decision.manifest is None:
            return False  # somebody else is retiring it
        owner = f"day-{entry_name(id)}"
        who = stamp(seams.new_id())
        ledger.create_pin(Pin(**who, owner=owner, kind="day", entry=id, manifest=decision.manifest, by="retention"))
        if ledger.is_kept(id):
            return True
        ledger.delete_pin(owner)
        return False


class DatedCheckpoints:
    """The checkpoints that are there and can be gone back to, each with its day, read once in a clean-up."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    @functools.cached_property
    def days(self) -> dict[int, date]:
        """By the clocks of those who decided."""
        rollbacks = self.ledger.rollbacks()
        found = ((id, _day_of(self.ledger, id, rollbacks)) for id in self.ledger.ids())
        return {id: day for id, day in found if day is not None}

    def apart(self, id: int, later: int | None, seconds: float) -> bool:
        """Whether so much time has passed between two checkpoints, or since one, by the store's clock. What is not
        there any more is not far."""
        ages = (self.ledger.age_of_decision(id), 0.0 if later is None else self.ledger.age_of_decision(later))
        return None not in ages and (ages[0] or 0.0) - (ages[1] or 0.0) >= seconds


def _day_of(ledger: Ledger, id: int, rollbacks: Sequence[tuple[int, int]]) -> date | None:
    """The day on which a checkpoint was completed that can be gone back to; None: it is none."""
    decision = ledger.decision(id)
    if decision is None or decision.outcome != "completed" or rolled_back_by(id, rollbacks) is not None:
        return None
    plan = ledger.plan(id)
    there = plan is not None and plan.restart is None and ledger.published(id) is not None
    return datetime.fromisoformat(decision.created).date() if there else None
