"""A gate in the graph: a node that lets rows pass, or not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.gates.base import POLICIES, Gate, hold_problems
from tidegate.gates.quarantine.table import QuarantineSink, quarantine_name

__all__ = ["GateNode", "gate_problems"]


@dataclass(frozen=True)
class GateNode:
    """A gate under its name, and the stream that it judges. Its own stream is what passes."""

    name: str
    gate: Gate
    input: str
    job: str | None = None
    generated: bool = False
    """Whether its name was made of what it is, because none was given."""

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
        """The table for the rows that did not, by the name under which it is published; none if it sets none aside."""
        return {quarantine_name(self.name): self.gate.quarantine(self.name)} if self.gate.quarantines else {}


def gate_problems(stages: Iterable[object], *, by_interval: bool, at_least_once: bool = False) -> list[str]:
    """What is wrong with the gates' declarations. at_least_once: rows are written before any decision."""
    problems = []
    for stage in stages:
        if not isinstance(stage, GateNode):
            continue
        if isinstance(stage.gate, Gate):
            found = [*stage.gate.problems(), *hold_problems(stage.gate)]
            if by_interval:
                found += [
                    f"in a pipeline that reads by data interval: {each}" for each in stage.gate.interval_problems()
                ]
            more = [each for each in POLICIES[:-1] if at_least_once and not found and each in stage.gate.policies]
            if more:
                found.append(
                    f"it may {' or '.join(more)}, but in mode at_least_once rows are in the tables before anything is "
                    'decided: let it "warn", or say mode = "exactly_once"'
                )
            problems += [f"gate {stage.name!r}: {problem}" for problem in found]
        else:
            problems.append(f"gate {stage.name!r} is a {type(stage.gate).__name__}, not a Gate such as Expectations(…)")
    return problems
