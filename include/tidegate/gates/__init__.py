"""Gates judge rows, and so decide what may become visible."""

from tidegate.gates.agrees import Agrees
from tidegate.gates.anomaly import Anomaly
from tidegate.gates.base import BrokenRule, Gate, GateContext, Judgement
from tidegate.gates.builtin import Freshness, SchemaDrift, Volume
from tidegate.gates.contracts.gate import Contract
from tidegate.gates.expectations.gate import Expectations
from tidegate.gates.references import References
from tidegate.gates.row_rules import RowRules
from tidegate.gates.unique import Unique
from tidegate.gates.unseen import Unseen

__all__ = [
    "Agrees",
    "Anomaly",
    "BrokenRule",
    "Contract",
    "Expectations",
    "Freshness",
    "Gate",
    "GateContext",
    "Judgement",
    "References",
    "RowRules",
    "SchemaDrift",
    "Unique",
    "Unseen",
    "Volume",
]
