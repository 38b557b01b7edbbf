"""The contract of a gate, which judges rows before they count.

    call        when                                             may it fail?
    problems    when the pipeline is validated                   –
    check       before a checkpoint is planned                   yes: the checkpoint is declined
    warm        before Spark is requested, in a thread           –
    fix_inputs  when a checkpoint is planned                     yes: the checkpoint is declined
    judge       in a job, once per attempt, possibly doubled     yes: the attempt is retried

The judgement goes into the job's ack, so it is about exactly the rows that the ack names, and the decision follows
it. A gate of your own is a class with `describe` and `judge`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from tidegate.config.keys import seconds_in
from tidegate.connectors.source import SourceContext
from tidegate.records.place import Place
from tidegate.records.records import Hold, Json
from tidegate.renamed_hooks import GATE_HOOKS, refuse_old_hooks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidegate.connectors.prestaged import PrestagedRows
    from tidegate.gates.quarantine.table import QuarantineSink

__all__ = [
    "POLICIES",
    "BrokenRule",
    "Gate",
    "GateContext",
    "Judgement",
    "Policy",
    "exact_share",
    "memory_key",
    "policy_problems",
]

Policy = Literal["abort", "hold", "quarantine", "warn"]
"""The consequence of a broken rule: abort the checkpoint, wait for a person, move the bad rows to quarantine, or only
report it. The job carries out the worst one that was broken (`execution/job/gates.py`); the decision obeys the verdict
that it leaves (`protocol/verdicts.py`)."""
POLICIES: tuple[Policy, ...] = get_args(Policy)
"""The worst one first."""


@dataclass(frozen=True)
class GateContext:
    """Whose rows are judged, and what the gate remembers of earlier ones."""

    pipeline: str
    gate: str
    place: Place
    checkpoint: int = 0
    clock: str = ""
    """The time at which the checkpoint was planned, in UTC, as ISO 8601: the same for every attempt."""
    memory: Json = field(default_factory=dict)
    """The gate's `Judgement.memory` of the last completed checkpoint."""
    cut_freely: bool = False
    """True: a backfill cuts its input as it likes, so the number of rows says nothing about that of other
    checkpoints."""
    planned_inputs: tuple[Json, SourceContext] | None = None
    """The result of `fix_inputs` when the checkpoint was planned."""
    stage: Callable[..., PrestagedRows | None] | None = None
    """For a gate right before a table: writes rows to the table's files, with mark columns, and as drafts if requested
    (`connectors/prestaged.py`). It returns None if this is impossible. None: the gate is not right before a table."""
    lookup_operator_rows: Callable[[DataFrame], DataFrame | None] | None = None
    """For a gate that is `against` an operator: looks up the operator's rows with these keys, as of the base. It
    returns None if the operator has no state yet."""


@dataclass(frozen=True)
class BrokenRule:
    """A rule that failed, and the policy that applies."""

    rule: str
    policy: Policy
    severity: str = "critical"
    rows: int | None = None
    """The number of rows that broke it. None: the rule is not about single rows."""
    why: str = ""
    """One line for display."""


@dataclass(frozen=True)
class Judgement:
    """The judgement of a gate on the rows of one attempt."""

    rows: int
    broken: tuple[BrokenRule, ...] = ()
    results: Json = field(default_factory=dict)
    """All details, for display. Expectations puts Great Expectations' result here."""
    split: tuple[DataFrame, DataFrame] | None = field(default=None, compare=False, repr=False)
    """The rows that pass, and those for quarantine, with the names of the rules that they broke in RULES. None: all
    pass. Both are read when the job stages, from the same rows that were judged."""
    persisted: tuple[DataFrame, ...] = field(default=(), compare=False, repr=False)
    """Frames that are persisted in Spark. They are released once the job has staged."""
    frame: DataFrame | None = field(default=None, compare=False, repr=False)
    """For a gate that `persists`: its input rows, as it has persisted them."""
    prestaged: PrestagedRows | None = field(default=None, compare=False, repr=False)
    """The rows, if the gate has staged them (`GateContext.stage`). `split` is then None."""
    quarantined: Iterable[pa.Table] | None = field(default=None, compare=False, repr=False)
    """The staged rows for quarantine, with the names of the rules that they broke in RULES. Once all of them are read,
    the files hold only the other rows, and `results` is complete. None: all rows pass."""
    memory: Json = field(default_factory=dict)
    """Data for the gate's next judgement, if this checkpoint is completed. Keep it short."""
    rows_hash: str = ""
    """A hash of the judged rows as a multiset, if the gate knows it; else it is computed where it is needed."""
    why: str = ""
    """What is said beside the verdict, such as what was not judged."""

    RULES: ClassVar[str] = "_tidegate_rules"


class Gate(ABC):
    """Judges rows. Subclass it for a gate of your own."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, GATE_HOOKS)

    kind: ClassVar[str]
    at_most: float = 1.0
    """The share of rows above which quarantine aborts instead."""
    hold_for: float | str | None = "1 day"
    """How long a hold waits for an answer. None: without limit."""
    unanswered: Literal["approve", "reject"] = "reject"
    """The answer that counts if nobody has answered by then."""
    persists: ClassVar[bool] = False
    """True: the gate persists the rows itself, because it adds columns to them (`Judgement.frame`)."""
    against: str | None = None
    """The uid of an operator whose keys the gate looks up (`GateContext.lookup_operator_rows`)."""
    remembers: bool = False
    """True: the gate compares with earlier checkpoints (`Judgement.memory`), which interval pipelines do not have."""

    @abstractmethod
    def describe(self) -> Json:
        """Return the configuration, for fingerprints and `explain`, without secrets."""

    @property
    def identity_parts(self) -> list[str]:
        """The words that distinguish it from gates of the same kind on the same stream. A gate without a name gets one
        made of it."""
        return []

    @property
    def quarantines(self) -> bool:
        """True: the gate may move rows to quarantine, so it needs a table for them. That includes rows that it holds: a
        person who rejects them may send them to quarantine."""
        return False

    @property
    def policies(self) -> frozenset[Policy]:
        """The policies that may apply to its findings. By default all of them."""
        return frozenset(POLICIES)

    def quarantine(self, name: str) -> QuarantineSink:
        """Return the quarantine table of the gate with this name."""
        from tidegate.gates.quarantine.table import QuarantineSink

        return QuarantineSink(name)

    @property
    def hold_record(self) -> Hold:
        """The verdict's record of how long a hold waits for a person."""
        limit = seconds_in(self.hold_for) if self.hold_for is not None else None
        return Hold(limit_s=limit, default=self.unanswered)

    def problems(self) -> list[str]:
        """Return all problems of the declaration."""
        return []

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        """What in its verdict goes by how the input is cut into checkpoints, or by their clock, in words."""
        return ["it compares a checkpoint with those before it"] if self.remembers else []

    def interval_problems(self) -> list[str]:
        """Return the reasons why it cannot be used in a pipeline whose runs read by data interval, in any order."""
        return ["it compares with earlier checkpoints, and intervals come in any order"] if self.remembers else []

    def check(self, context: GateContext) -> None:  # noqa: B027
        """Raise Invalid for errors that show before anything is planned."""

    def declared_elsewhere(self, context: GateContext) -> str:
        """Return what declares it besides the code, such as the text of a file. Never raises."""
        return ""

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:  # noqa: B027
        """Raise Invalid if it cannot judge rows with these columns. The frame has no rows, and no query runs."""

    def warm_up(self) -> None:  # noqa: B027
        """Do slow work that needs no rows, such as an import. Called in a thread, while Spark starts."""

    def fix_inputs(self, context: SourceContext) -> Json | None:
        """Return what to read in addition to the rows, such as a table's version: the same for every attempt. None:
        nothing."""
        return None

    def fix_inputs_again(self, recorded: Json, context: SourceContext) -> Json | None:
        """Return the same for a checkpoint that repeats another one, of which it was `recorded`."""
        return recorded

    def lost_inputs(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterable[str]:
        """Return in words, each once, what of the recorded inputs `fix_inputs_again` would return and cannot be read
        any more.

        recorded: by checkpoint, what `fix_inputs` has returned for it.
        """
        return ()

    @property
    def reads_tables(self) -> bool:
        """True: it reads what earlier checkpoints publish, so the next checkpoint is planned only after they are
        published."""
        return type(self).fix_inputs is not Gate.fix_inputs

    @abstractmethod
    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        """Judge these rows. They are persisted, so that every read returns the same rows, unless the gate itself
        `persists` them."""


def memory_key(gate: str) -> str:
    """Return the key of a gate's memory in an ack. Names that users give have no dot."""
    return f"gate.{gate}"


def exact_share(share: float, whole: float) -> Fraction:
    """Return a share of a whole in exact decimals: 0.29 of 100 is 29, though the product of the floats is less."""
    return Fraction(str(share)) * Fraction(whole)


def policy_problems(policies: Mapping[str, object]) -> list[str]:
    """Return the problems of policies, which are given by their purpose."""
    return [
        f"policy {policy!r} for {purpose}: expected {', '.join(POLICIES)}"
        for purpose, policy in policies.items()
        if policy not in POLICIES
    ]


def hold_problems(gate: Gate) -> list[str]:
    """Return the problems of the settings that say how long a gate waits for a person."""
    problems = []
    try:
        is_valid = gate.hold_for is None or seconds_in(gate.hold_for) >= 0
    except ValueError:
        is_valid = False
    if not is_valid:
        problems.append(f'hold_for is {gate.hold_for!r}: expected a duration such as "1 day", or None')
    if gate.unanswered not in ("approve", "reject"):
        problems.append(f'unanswered is {gate.unanswered!r}: expected "approve" or "reject"')
    return problems
