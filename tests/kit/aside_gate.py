"""A gate that sets rows aside, or only warns."""

from __future__ import annotations

from typing import Any

from tidegate.gates import Gate, GateContext, Judgement
from tidegate.records.records import Json


class Aside(Gate):
    """Sets rows aside, or only warns."""

    kind = "aside"

    def __init__(self, *, quarantines: bool) -> None:
        self._quarantines = quarantines

    @property
    def quarantines(self) -> bool:
        return self._quarantines

    def describe(self) -> Json:
        return {"quarantines": self.quarantines}

    def judge(self, frame: Any, context: GateContext) -> Judgement:
        return Judgement(0)
