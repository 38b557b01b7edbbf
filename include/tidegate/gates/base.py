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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from tidegate.config.keys import seconds_in
from tidegate.connectors.source import SourceContext
from tidegate.connectors.unrepeatable import unrepeatable_in_text
from tidegate.gates.row_rules import RowRules
from tidegate.records.place import Place
from tidegate.records.records import Drift, Hold, Json, SourceSchema
from tidegate.renamed_hooks import GATE_HOOKS, refuse_old_hooks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tidegate.connectors.delta.source.delta_table import DeltaTable
    from tidegate.connectors.prestaged import PrestagedRows
    from tidegate.gates.quarantine.table import QuarantineSink
    from tidegate.operators.base import Operator

__all__ = [
    "POLICIES",
    "BrokenRule",
    "Gate",
    "GateContext",
    "Judgement",
    "Policy",
    "RowRules",
    "exact_share",
    "is_share",
    "memory_key",
    "policies_among",
    "policy_problems",
    "repeatable_problems",
]

Policy = Literal["abort", "hold", "quarantine", "warn"]
"""The consequence of a broken rule: abort the checkpoint, wait for a person, move the bad rows to quarantine, or only
report it. The most severe policy of all broken rules applies (`execution/job/gates.py`), and the decision follows the
verdict (`protocol/verdicts.py`)."""
POLICIES: tuple[Policy, ...] = get_args(Policy)
"""All policies, the most severe first."""


@dataclass(frozen=True)
class GateContext:
    """The pipeline, the checkpoint and the gate's memory, for a call of `judge`."""

    pipeline: str
    gate: str
    place: Place
    checkpoint: int = 0
    clock: str = ""
    """When the checkpoint was planned, in UTC, as ISO 8601. All attempts get the same time."""
    memory: Json = field(default_factory=dict)
    """The gate's `Judgement.memory` of the last completed checkpoint."""
    cut_freely: bool = False
    """True in a backfill that cuts its input into checkpoints of any size. The number of rows then cannot be compared
    with earlier checkpoints."""
    quarantine_held: bool = False
    """True if a person chose that rows which break a rule with the policy `hold` go to quarantine. A gate that cannot
    say which rows these are may still hold: then all of its rows go there."""
    planned_inputs: tuple[Json, SourceContext] | None = None
    """The result of `fix_inputs` when the checkpoint was planned."""
    stage: Callable[..., PrestagedRows | None] | None = None
    """For a gate directly before a table: writes rows to the table's files, with mark columns, and as drafts if
    requested (`connectors/prestaged.py`), or returns None if it cannot. None for other gates."""
    drift: Drift | None = None
    """For a gate directly behind a source: what of its input does not fit the schema of the plan, if anything."""
    schema: SourceSchema | None = None
    """For a gate directly behind a source whose schema may follow its input: the schema of the plan."""
    lookup_operator_rows: Callable[[DataFrame], DataFrame | None] | None = None
    """For a gate that is `against` an operator: returns the operator's rows with these keys at the base, or None if the
    operator has no state yet."""


@dataclass(frozen=True)
class BrokenRule:
    """A rule that failed, and the policy that applies."""

    rule: str
    policy: Policy
    severity: str = "critical"
    rows: int | None = None
    """The number of rows that broke it, or None if the rule is not about single rows."""
    why: str = ""
    """One line for display."""
    was_held: bool = False
    """Whether its policy is `hold`, and its rows go to quarantine because a person chose so."""


@dataclass(frozen=True)
class Judgement:
    """The result of `Gate.judge`."""

    rows: int
    """The number of judged rows."""
    broken: tuple[BrokenRule, ...] = ()
    """The rules that the rows broke. Empty if all rows pass."""
    results: Json = field(default_factory=dict)
    """All details, for display, such as the results of Great Expectations."""
    split: tuple[DataFrame, DataFrame] | None = field(default=None, compare=False, repr=False)
    """The rows that pass, and those for quarantine with the names of their broken rules in the column RULES. Both are
    read later, from the rows that were judged. None if all rows pass."""
    persisted: tuple[DataFrame, ...] = field(default=(), compare=False, repr=False)
    """Frames that are cached in Spark. They are released when the job has staged its rows."""
    frame: DataFrame | None = field(default=None, compare=False, repr=False)
    """From a gate that `persists`: the judged rows, as it has cached them. From one with `marks`: without these."""
    prestaged: PrestagedRows | None = field(default=None, compare=False, repr=False)
    """The rows, if the gate has staged them with `GateContext.stage`. `split` is then None."""
    quarantined: Iterable[pa.Table] | None = field(default=None, compare=False, repr=False)
    """Of staged rows, those for quarantine, with the names of their broken rules in the column RULES. Once all of them
    are read, the files hold only the other rows, and `results` is complete. None if all rows pass."""
    memory: Json = field(default_factory=dict)
    """Data for the gate's next judgement, if this checkpoint is completed. Keep it short: it is stored in the ack."""
    rows_hash: str = ""
    """A hash of the judged rows as a multiset, if the gate has computed it. Otherwise it is computed where needed."""
    why: str = ""
    """A remark to display with the verdict, such as what was not judged."""

    RULES: ClassVar[str] = "_tidegate_rules"


class Gate(ABC):
    """Judges rows before they count.

    Subclass it for your own gate, and implement `describe` and `judge`:

    class NotEmpty(Gate):
        kind = "not-empty"

        def describe(self):
            return {"kind": self.kind}

        def judge(self, frame, context):
            rows = frame.count()
            broken = () if rows else (BrokenRule("not_empty", "abort", why="no rows"),)
            return Judgement(rows, broken)
    """

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        refuse_old_hooks(cls, GATE_HOOKS)

    kind: ClassVar[str]
    at_most: float = 1.0
    """The largest share of rows that may go to quarantine. If more are bad, the checkpoint is aborted."""
    hold_for: float | str | None = "1 day"
    """How long a hold waits for an answer. None waits without limit."""
    unanswered: Literal["approve", "reject"] = "reject"
    """The answer that counts if none is given in time."""
    persists: ClassVar[bool] = False
    """Whether the gate caches the rows itself, because it adds columns to them (`Judgement.frame`)."""
    against: str | None = None
    """The uid of an operator whose keys the gate looks up (`GateContext.lookup_operator_rows`)."""
    marks: Sequence[str] = ()
    """Columns that `operator_in_front` adds for the gate, and that end there."""
    remembers: bool = False
    """Whether the gate compares with earlier checkpoints (`Judgement.memory`), which interval pipelines do not have."""

    @abstractmethod
    def describe(self) -> Json:
        """Return the configuration, for fingerprints and `explain`, without secrets."""

    @property
    def identity_parts(self) -> list[str]:
        """Words that distinguish it from gates of the same kind on the same stream. They become part of its default
        name."""
        return []

    @property
    def operator_in_front(self) -> Operator | None:
        """An operator that the rows pass before the gate, because only an operator has keyed state. It emits all rows,
        with `marks`."""
        return None

    @property
    def other_streams(self) -> Sequence[object]:
        """The further streams of the pipeline that `operator_in_front` takes."""
        return ()

    @property
    def followed_by(self) -> Gate | None:
        """A second gate, which judges the rows that pass this one. None: there is none."""
        return None

    @property
    def quarantines(self) -> bool:
        """Whether rows may go to quarantine, so that the gate needs a table for them.

        This includes rows that it holds, which a person may send to quarantine.
        """
        return False

    @property
    def policies(self) -> frozenset[Policy]:
        """The policies that its broken rules may have. By default all of them."""
        return frozenset(POLICIES)

    def quarantine(self, name: str) -> QuarantineSink:
        """Return the quarantine table of the gate with this name."""
        from tidegate.gates.quarantine.table import QuarantineSink

        return QuarantineSink(name)

    @property
    def hold_record(self) -> Hold:
        """The record of `hold_for` and `unanswered`, for the verdict."""
        limit = seconds_in(self.hold_for) if self.hold_for is not None else None
        return Hold(limit_s=limit, default=self.unanswered)

    def problems(self) -> list[str]:
        """Return all problems of the declaration, each as a sentence."""
        return []

    @property
    def depends_on_checkpoint_cuts(self) -> list[str]:
        """The reasons why its verdict depends on how the input is cut into checkpoints, or on their clock."""
        return ["it compares a checkpoint with those before it"] if self.remembers else []

    def interval_problems(self) -> list[str]:
        """Return the reasons why it cannot be used in an interval pipeline, whose intervals run in any order."""
        return ["it compares with earlier checkpoints, and intervals come in any order"] if self.remembers else []

    def check(self, context: GateContext) -> None:  # noqa: B027
        """Raise Invalid for errors that can be found before a checkpoint is planned."""

    def declared_elsewhere(self, context: GateContext) -> str:
        """Return what declares the gate besides code, such as the text of a file. Must not raise."""
        return ""

    def check_columns(self, frame: DataFrame, context: GateContext) -> None:  # noqa: B027
        """Raise Invalid if it cannot judge rows with these columns. The frame has no rows, and no query may run."""

    def warm_up(self) -> None:  # noqa: B027
        """Do slow work that needs no rows, such as an import. Called in a thread, while Spark starts."""

    def fix_inputs(self, context: SourceContext) -> Json | None:
        """Return what the gate reads besides the rows, such as a table's version, or None.

        The result is stored with the plan, so that all attempts read the same.
        """
        return None

    def fix_inputs_again(self, recorded: Json, context: SourceContext) -> Json | None:
        """Return the fixed inputs of a checkpoint that repeats another one, whose inputs are `recorded`."""
        return recorded

    def lost_inputs(self, recorded: Mapping[int, Json], context: SourceContext) -> Iterable[str]:
        """Return a text for each input that `fix_inputs_again` would return and that can no longer be read.

        recorded: the results of `fix_inputs`, by checkpoint.
        """
        return ()

    @property
    def input_table(self) -> DeltaTable | None:
        """The table whose version `fix_inputs` returns, for lineage, or None."""
        return None

    @property
    def reads_tables(self) -> bool:
        """Whether it reads tables that earlier checkpoints publish. The next one is then planned after they are."""
        return type(self).fix_inputs is not Gate.fix_inputs

    def row_rules(self, frame: DataFrame, context: GateContext) -> RowRules | None:
        """Return the rules about single rows, without those that only warn. None: there are none.

        They judge rows that return from quarantine corrected, or to be judged again. frame: has the stream's columns,
        and is not read.
        """
        return None

    @abstractmethod
    def judge(self, frame: DataFrame, context: GateContext) -> Judgement:
        """Judge the rows. They are cached, so that every read returns the same rows, unless the gate `persists`."""


def memory_key(gate: str) -> str:
    """Return the key of a gate's memory in an ack. Names that users give have no dot."""
    return f"gate.{gate}"


def exact_share(share: float, whole: float) -> Fraction:
    """Return a share of a whole in exact decimals: 0.29 of 100 is 29, though the product of the floats is less."""
    return Fraction(str(share)) * Fraction(whole)


def repeatable_problems(name: str, function: object) -> list[str]:
    """Return why a gate cannot use an aggregate: attempts at a checkpoint would not find the same value."""
    called = unrepeatable_in_text(function) if isinstance(function, str) else []
    return [f"{name} is {function!r}: {call} has another value each time that it is computed" for call in called]


def is_share(value: object) -> bool:
    """Return whether a user's value is a number from 0 to 1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def policies_among(values: Iterable[object]) -> frozenset[Policy]:
    """Return those values that are policies. The others may be of any type: `policy_problems` reports them."""
    given = list(values)
    return frozenset(policy for policy in POLICIES if policy in given)


def policy_problems(policies: Mapping[str, object]) -> list[str]:
    """Return the problems of policies. policies: by their purpose, for the text."""
    return [
        f"policy {policy!r} for {purpose}: expected {', '.join(POLICIES)}"
        for purpose, policy in policies.items()
        if not isinstance(policy, str) or policy not in POLICIES
    ]


def hold_problems(gate: Gate) -> list[str]:
    """Return the problems of a gate's `hold_for` and `unanswered`."""
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
