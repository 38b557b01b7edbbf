"""What transforms and remembers: operators whose state tidegate keeps, checkpoint by checkpoint."""

from tidegate.operators.aggregate import Aggregate
from tidegate.operators.base import Operator, OperatorContext, Watermarks
from tidegate.operators.window import Window

__all__ = ["Aggregate", "Operator", "OperatorContext", "Watermarks", "Window"]
