"""What retention spares beyond `num_retained`: what is young, and of what is older so many checkpoints a day.

    retain_for        what was completed within this time stays
    retain_per_day    of what is older, the last so many of each day (UTC) stay,
    retain_days       for so many days

What a day keeps is pinned, like a savepoint: so it can be gone back to, and nothing that it names is removed, by the
rules that hold for every pin. Whether it is the day's last is told by what is there, each time; no count is stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from tidegate import seams
from tidegate.config.keys import KEYS
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.model.names import entry_name
from tidegate.model.records import Decision, Json, Pin
from tidegate.model.view import rolled_back_by

__all__ = ["Ages"]

Rollbacks = Sequence[tuple[int, int]]


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

    def pin_days(self, ledger: Ledger, ids: Sequence[int]) -> set[int]:
        """Pin those of these that their day keeps; answers with them."""
        if not self.per_day or not ids or (now := _newest(ledger)) is None:
            return set()
        rollbacks = ledger.rollbacks()
        return {id for id in ids if self._is_kept(ledger, id, now, rollbacks) and self._pin(ledger, id)}

    def unpin_days(self, ledger: Ledger, pins: list[Pin]) -> list[Pin]:
        """Let go of what its day keeps no longer: it is too old, or was rolled back, or settings have changed. Answers
        with the pins that are left."""
        if not any(pin.kind == "day" for pin in pins) or (now := _newest(ledger)) is None:
            return pins
        rollbacks = ledger.rollbacks()
        gone = [p for p in pins if p.kind == "day" and not self._is_kept(ledger, p.entry, now, rollbacks)]
        for pin in gone:
            ledger.delete_pin(pin.owner)
        return [pin for pin in pins if pin not in gone]

    def _is_young(self, ledger: Ledger, id: int) -> bool:
        age = ledger.age_of_decision(id)
        return age is not None and age < self.young_s

    def _is_kept(self, ledger: Ledger, id: int, now: date, rollbacks: Rollbacks) -> bool:
        """Whether it is one of the last of its day, and that is not too long ago."""
        day = _day_of(ledger, id, rollbacks)
        if day is None or (now - day).days > self.days:
            return False
        days = (found for other in ledger.ids(after=id) if (found := _day_of(ledger, other, rollbacks)) is not None)
        later = (found for found in itertools.takewhile(lambda found: found <= day, days) if found == day)
        return sum(1 for _ in itertools.islice(later, self.per_day)) < self.per_day

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


def _newest(ledger: Ledger) -> date | None:
    """The day of the last checkpoint that is on all tables."""
    return _day(ledger.decision(ledger.view().settled))


def _day_of(ledger: Ledger, id: int, rollbacks: Rollbacks) -> date | None:
    """The day on which a checkpoint was completed that can be gone back to; None: it is none."""
    decision = ledger.decision(id)
    if decision is None or decision.outcome != "completed" or rolled_back_by(id, rollbacks) is not None:
        return None
    plan = ledger.plan(id)
    return _day(decision) if plan is not None and plan.restart is None and ledger.published(id) is not None else None


def _day(decision: Decision | None) -> date | None:
    """By the writer's clock: it only says which of several that could all go stays."""
    return datetime.fromisoformat(decision.created).date() if decision is not None else None
