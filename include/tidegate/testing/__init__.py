"""Helpers for testing pipelines, and your own sources, sinks and operators.

    run               runs a pipeline's checkpoints in a test, and simulates crashes
    TestSource        a source with rows that a test provides, which can fail on request
    SourceContract    tests that every source must pass: subclass it
    SinkContract      tests that every sink must pass: subclass it
    OperatorContract  tests that every operator must pass, without Spark: subclass it
    crash_at          simulates a crash of this process at a step of a checkpoint
    local_spark       a Spark session in this process, for a fixture named `spark`

The contracts are pytest classes, but tidegate does not depend on pytest. All else works in any test framework.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if pytest := sys.modules.get("pytest"):  # failing asserts of the contracts then show the values that they compare
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
    """Import the contracts, which import pytest, on first use."""
    if name not in ("OperatorContract", "SinkContract", "SourceContract"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from tidegate.testing.operator_contract import OperatorContract
        from tidegate.testing.sink_contract import SinkContract
        from tidegate.testing.source_contract import SourceContract
    except ModuleNotFoundError as error:
        if error.name != "pytest":
            raise
        raise Invalid(
            f"tidegate.testing.{name} is a class for pytest, which is not installed",
            expected="pytest",
            help="pip install pytest",
            reason="NOT_INSTALLED",
        ) from error
    contracts = {
        "OperatorContract": OperatorContract,
        "SinkContract": SinkContract,
        "SourceContract": SourceContract,
    }
    return contracts[name]
