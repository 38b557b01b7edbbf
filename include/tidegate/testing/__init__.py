"""For tests of pipelines, and of sources and sinks of your own.

    run               runs a pipeline's checkpoints in a test, and lets them crash
    TestSource        a source whose rows a test gives, and that fails when it is told to
    SourceContract    what every source promises, as tests: subclass it
    SinkContract      what every sink promises, as tests: subclass it
    OperatorContract  what every operator promises, as tests that need no Spark: subclass it
    crash_at          lets this process die, as far as tidegate can tell, at a step of a checkpoint
    local_spark       a Spark session in this process, for a fixture named `spark`

The contracts are classes for pytest, which tidegate does not depend on. All else works in any test framework.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if pytest := sys.modules.get("pytest"):  # its asserts then say what was compared
    pytest.register_assert_rewrite(*(f"tidegate.testing.{name}_contract" for name in ("sink", "source", "operator")))

from tidegate.errors import Invalid
from tidegate.seams import FAULT_POINTS
from tidegate.testing.crashes import Crash, crash_at, points_reached
from tidegate.testing.rows_source import TestSource
from tidegate.testing.running import RunningPipeline, local_spark, run

if TYPE_CHECKING:
    from tidegate.testing.operator_contract import OperatorContract
    from tidegate.testing.sink_contract import SinkContract
    from tidegate.testing.source_contract import SourceContract

__all__ = [
    "FAULT_POINTS",
    "Crash",
    "OperatorContract",
    "RunningPipeline",
    "SinkContract",
    "SourceContract",
    "TestSource",
    "crash_at",
    "local_spark",
    "points_reached",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import the contracts, and with them pytest, when they are asked for."""
    if name not in ("OperatorContract", "SinkContract", "SourceContract"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from tidegate.testing import operator_contract, sink_contract, source_contract
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise Invalid(
            f"tidegate.testing.{name} is a class for pytest, which is not installed",
            expected="pytest",
            help="pip install pytest",
            reason="NOT_INSTALLED",
        ) from error
    contracts = (operator_contract.OperatorContract, sink_contract.SinkContract, source_contract.SourceContract)
    return next(contract for contract in contracts if contract.__name__ == name)
