"""Operators: transformations whose state tidegate keeps, checkpoint by checkpoint."""

from tidegate.operators.aggregate import Aggregate
from tidegate.operators.base import Operator
from tidegate.operators.context import OperatorContext, Watermarks
from tidegate.operators.custom import Clock, KeyedOperator, StepResult
from tidegate.operators.deduplicate import Deduplicate
from tidegate.operators.join.as_of import AsOfJoin
from tidegate.operators.join.join import IntervalJoin, LatestJoin, TableJoin
from tidegate.operators.latest import Latest, TopN
from tidegate.operators.process.list_state import ListState
from tidegate.operators.process.map_state import MapState
from tidegate.operators.window.window import Window

__all__ = [
    "Aggregate",
    "AsOfJoin",
    "Clock",
    "Deduplicate",
    "IntervalJoin",
    "KeyedOperator",
    "Latest",
    "LatestJoin",
    "ListState",
    "MapState",
    "Operator",
    "OperatorContext",
    "StepResult",
    "TableJoin",
    "TopN",
    "Watermarks",
    "Window",
]
