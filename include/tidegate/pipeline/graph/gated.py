"""A gate as a node of the graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.gates.base import POLICIES, Gate, hold_problems
from tidegate.gates.quarantine.table import QuarantineSink, quarantine_name

__all__ = ["GateNode", "gate_problems"]


@dataclass(frozen=True)
class GateNode:
    """A gate under its name, and the stream that it judges. Its own stream has the rows that pass."""

    name: str
    gate: Gate
    input: str
    job: str | None = None
    generated: bool = False
    """True if the name is a default, made of the input, the kind and the rules."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.input,)

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()

    @property
    def produces(self) -> tuple[str, ...]:
        """The stream of the rows that passed."""
        return (self.name,)

    @property
    def quarantine(self) -> dict[str, QuarantineSink]:
        """Its quarantine table, by its published name; empty if it quarantines nothing."""
        return {quarantine_name(self.name): self.gate.quarantine(self.name)} if self.gate.quarantines else {}


def gate_problems(stages: Iterable[object], *, by_interval: bool, at_least_once: bool = False) -> list[str]:
    """List what is wrong with the gates' declarations. at_least_once: rows are written before any decision."""
    problems = []
    for stage in stages:
        if not isinstance(stage, GateNode):
            continue
        if isinstance(stage.gate, Gate):
            faults = [*stage.gate.problems(), *hold_problems(stage.gate)]
            if by_interval:
                faults += [
                    f"in a pipeline that reads by data interval: {problem}"
                    for problem in stage.gate.interval_problems()
                ]
            unsafe = [policy for policy in POLICIES[:-1] if policy in stage.gate.policies] if at_least_once else []
            if unsafe and not faults:
                faults.append(
                    f"it may {' or '.join(unsafe)}, but in mode at_least_once rows are in the tables before any "
                    'decision: let it "warn", or set mode = "exactly_once"'
                )
            problems += [f"gate {stage.name!r}: {problem}" for problem in faults]
        else:
            problems.append(f"gate {stage.name!r} is a {type(stage.gate).__name__}, not a Gate such as Expectations(…)")
    return problems
