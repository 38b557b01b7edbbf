"""Judge (4): gates decide what may become visible."""

from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement
from tidegate.gates.expectations import Expectations

__all__ = ["BrokenRule", "Expectations", "Gate", "GateContext", "Judgement"]
