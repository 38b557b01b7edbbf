"""What a gate is: something that judges rows before they count.

    call      when                                             may it fail?
    problems  when the pipeline is validated                   –
    check     before a checkpoint is planned                   yes: the checkpoint is declined
    judge     in a job, once per attempt, possibly doubled     yes: the attempt is retried

What a gate finds goes into the job's ack, so it speaks of exactly the rows that the ack names, and the decision
follows it. A gate of your own is a class with `describe` and `judge`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from tidegate.model.place import Place
from tidegate.model.records import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["POLICIES", "BrokenRule", "Gate", "GateContext", "Judgement", "Policy"]

Policy = Literal["abort", "quarantine", "warn"]
"""What follows when a rule is broken: the checkpoint is aborted; the bad rows are set aside; it is only told."""
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True)
class GateContext:
    """Whose rows are judged."""

    pipeline: str
    gate: str
    place: Place
    checkpoint: int = 0


@dataclass(frozen=True)
class BrokenRule:
    """A rule that failed, and what follows."""

    rule: str
    policy: Policy
    severity: str = "critical"
    rows: int | None = None
    """How many rows broke it; None if it speaks of no rows."""
    why: str = ""
    """For people, one line."""


@dataclass(frozen=True)
class Judgement:
    """What a gate found in the rows of one attempt."""

    rows: int
    broken: tuple[BrokenRule, ...] = ()
    results: Json = field(default_factory=dict)
    """Everything, for people; of Expectations it is Great Expectations' result."""
    split: tuple[DataFrame, DataFrame] | None = field(default=None, compare=False, repr=False)
    """The rows that go on; and those for quarantine, with the names of the rules that they broke in RULES. None: all
    go on. Both are to be read once the job stages, from the same rows that were judged."""

    RULES: ClassVar[str] = "_tidegate_rules"


class Gate(ABC):
    """Judges rows. Subclass it for a gate of your own."""

    kind: ClassVar[str]
    at_most: float = 1.0
    """The share of rows above which quarantine aborts instead."""

    @abstractmethod
    def describe(self) -> Json:
        """The configuration, for fingerprints and `explain`; no secrets."""

    @property
    def quarantines(self) -> bool:
        """Whether it may set rows aside, so that it needs a table for them."""
        return False

    def problems(self) -> list[str]:
        """What is wrong with the declaration itself, all at once."""
        return []

    def check(self, context: GateContext) -> None:  # noqa: B027
        """Refuse (Invalid) what can be known to be wrong before anything is planned."""

    @abstractmethod
    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        """Judge these rows. It may read them more than once: they are kept, and the same each time."""


def policy_problems(policies: Mapping[str, object]) -> list[str]:
    """What is wrong with policies that were given, by what they are for."""
    return [
        f"policy {policy!r} for {what}: expected {', '.join(POLICIES)}"
        for what, policy in policies.items()
        if policy not in POLICIES
    ]
