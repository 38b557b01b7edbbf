"""What a gate is: something that judges rows before they count.

    call      when                                             may it fail?
    problems  when the pipeline is validated                   –
    check     before a checkpoint is planned                   yes: the checkpoint is declined
    warm      before Spark is asked for, in a thread           –
    pin       when a checkpoint is planned                     yes: the checkpoint is declined
    judge     in a job, once per attempt, possibly doubled     yes: the attempt is retried

What a gate finds goes into the job's ack, so it speaks of exactly the rows that the ack names, and the decision
follows it. A gate of your own is a class with `describe` and `judge`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from tidegate.config.keys import seconds_in
from tidegate.records.place import Place
from tidegate.records.records import Hold, Json
from tidegate.sources.base import SourceContext

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidegate.gates.quarantine.table import QuarantineSink
    from tidegate.sinks.prestaged import PrestagedRows

__all__ = ["POLICIES", "BrokenRule", "Gate", "GateContext", "Judgement", "Policy", "exact_share", "policy_problems"]

Policy = Literal["abort", "hold", "quarantine", "warn"]
"""What follows when a rule is broken: the checkpoint is aborted; it waits for a person; the bad rows are set aside; or
it is only told."""
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True)
class GateContext:
    """Whose rows are judged, and what is known of those before."""

    pipeline: str
    gate: str
    place: Place
    checkpoint: int = 0
    clock: str = ""
    """When the checkpoint was planned, in UTC, as ISO 8601: the same for every attempt."""
    memory: Json = field(default_factory=dict)
    """What the gate told to remember (`Judgement.memory`) in the last completed checkpoint."""
    pinned: tuple[Json, SourceContext] | None = None
    """What `pin` answered when the checkpoint was planned."""
    stage: Callable[..., PrestagedRows | None] | None = None
    """Of a gate right before a table: writes rows to files for it, with numbers beside each, as drafts if it is told so
    (`sinks/prestaged.py`). It may answer that this cannot be done. None: it is no such gate."""
    held: Callable[[DataFrame], DataFrame | None] | None = None
    """Of a gate that is `against` an operator: what that holds of these keys, as of the base. None: nothing yet."""


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
    kept: tuple[DataFrame, ...] = field(default=(), compare=False, repr=False)
    """What was persisted in Spark and is let go once the job has staged."""
    frame: DataFrame | None = field(default=None, compare=False, repr=False)
    """Of a gate that `keeps`: the rows that it was given, as it has kept them."""
    ahead: PrestagedRows | None = field(default=None, compare=False, repr=False)
    """The rows, if the gate has had them staged (`GateContext.stage`). Then `split` is None."""
    apart: Iterable[pa.Table] | None = field(default=None, compare=False, repr=False)
    """Of such rows those for quarantine, with the names of the rules that they broke in RULES. Once all of them are
    had, the files hold the others, and `results` are complete. None: all go on."""
    memory: Json = field(default_factory=dict)
    """What the gate wants to know at the next checkpoint, if this one is completed. Short."""

    RULES: ClassVar[str] = "_tidegate_rules"


class Gate(ABC):
    """Judges rows. Subclass it for a gate of your own."""

    kind: ClassVar[str]
    at_most: float = 1.0
    """The share of rows above which quarantine aborts instead."""
    hold_for: float | str | None = "1 day"
    """How long a verdict that says hold waits for an answer; None: for ever."""
    unanswered: Literal["approve", "reject"] = "reject"
    """What counts when nobody has answered by then."""
    keeps: ClassVar[bool] = False
    """Whether it keeps the rows itself, because it computes something beside each (`Judgement.frame`)."""
    against: str | None = None
    """The uid of an operator whose keys it looks at (`GateContext.held`)."""
    remembers: bool = False
    """Whether it goes by earlier checkpoints (`Judgement.memory`), of which interval pipelines have none."""

    @abstractmethod
    def describe(self) -> Json:
        """The configuration, for fingerprints and `explain`; no secrets."""

    @property
    def told_by(self) -> list[str]:
        """What tells it from others of its kind that judge the same stream: a name is made of it if none is given."""
        return []

    @property
    def quarantines(self) -> bool:
        """Whether it may set rows aside, so that it needs a table for them. What it holds, too, may be set aside: a
        person who rejects it may choose so."""
        return False

    @property
    def policies(self) -> frozenset[Policy]:
        """What may follow from what it finds; if it does not say so, anything."""
        return frozenset(POLICIES)

    def quarantine(self, name: str) -> QuarantineSink:
        """The table for the rows that are set aside by the gate of this name."""
        from tidegate.gates.quarantine.table import QuarantineSink

        return QuarantineSink(name)

    @property
    def hold_record(self) -> Hold:
        """How long it waits for a person, for the verdict."""
        limit = seconds_in(self.hold_for) if self.hold_for is not None else None
        return Hold(limit_s=limit, default=self.unanswered)

    def problems(self) -> list[str]:
        """What is wrong with the declaration itself, all at once."""
        return []

    def interval_problems(self) -> list[str]:
        """Why it cannot serve a pipeline whose runs read by data interval, in any order."""
        return ["it goes by earlier checkpoints, and intervals come in any order"] if self.remembers else []

    def check(self, context: GateContext) -> None:  # noqa: B027
        """Refuse (Invalid) what can be known to be wrong before anything is planned."""

    def warm(self) -> None:  # noqa: B027
        """Do what takes long and needs no rows, such as an import. Called in a thread, while Spark is got ready."""

    def pin(self, context: SourceContext) -> Json | None:
        """What it is to read beside its rows, such as a table's version: the same for every attempt. None: nothing."""
        return None

    @property
    def pins_tables(self) -> bool:
        """Whether what it pins is what earlier checkpoints publish: then the next one is planned when that is there."""
        return type(self).pin is not Gate.pin

    @abstractmethod
    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        """Judge these rows. They are kept, so that they are the same whenever they are read; or it `keeps` them."""


def exact_share(share: float, whole: float) -> Fraction:
    """A share of a whole as it is written: 0.29 of 100 is 29, though the product of both as floats is less."""
    return Fraction(str(share)) * Fraction(whole)


def policy_problems(policies: Mapping[str, object]) -> list[str]:
    """What is wrong with policies that were given, by what they are for."""
    return [
        f"policy {policy!r} for {what}: expected {', '.join(POLICIES)}"
        for what, policy in policies.items()
        if policy not in POLICIES
    ]


def hold_problems(gate: Gate) -> list[str]:
    """What is wrong with how long a gate waits for a person."""
    found = []
    try:
        right = gate.hold_for is None or seconds_in(gate.hold_for) >= 0
    except ValueError:
        right = False
    if not right:
        found.append(f'hold_for is {gate.hold_for!r}: expected a duration such as "1 day", or None')
    if gate.unanswered not in ("approve", "reject"):
        found.append(f'unanswered is {gate.unanswered!r}: expected "approve" or "reject"')
    return found
