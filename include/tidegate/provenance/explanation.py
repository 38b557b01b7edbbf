"""Answers why a table has a row: with the records, corrections and state without which it would be another one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tidegate.backfill.open_backfill import list_manual_edits, refuse_kind
from tidegate.backfill.recorded import RecordedPlans
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.delta.as_python import json_value
from tidegate.errors import Invalid, Rejected, TidegateError
from tidegate.gates.quarantine.table import QUARANTINE, quarantine_name
from tidegate.operators.base import Operator
from tidegate.pipeline.graph.graph import Graph, OperatorNode
from tidegate.pipeline.graph.nodes import GateNode
from tidegate.pipeline.graph.upstream import upstream_of
from tidegate.pipeline.selection import sql_of
from tidegate.provenance.lineage import Guess, among, guesses, links
from tidegate.provenance.minimal import Choice, OutOfTries, Tries, minimal_choice
from tidegate.provenance.question import AskedRow, count_equal, find_row
from tidegate.provenance.records import InputRecord, RecordedInput
from tidegate.provenance.replays import Cause, Moment, OlderState, Replays, TakenRequests
from tidegate.records import typed
from tidegate.records.records import Json, Plan, Request

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tidegate.checkpoint.context import PipelineContext
    from tidegate.coordinator import Coordinator
    from tidegate.delta import Snapshot

__all__ = [
    "Asked",
    "CauseCheckpoint",
    "Explanation",
    "NamedCorrection",
    "NamedRecord",
    "Step",
    "explain_row",
    "prepare",
]


class NamedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record without which the row would be another one."""

    source: str
    checkpoint: int
    place: str | None
    """Where the input has it: a record of a file, an offset of a topic. None: its source cannot tell."""
    values: Json
    """Its columns, without private ones."""
    is_proven: bool
    """Whether it was left out, and the row was another one. False: the limit of replays left no try for that."""


class NamedCorrection(msgspec.Struct, frozen=True, kw_only=True):
    """What people asked to do with quarantined rows, without which the row would be another one."""

    checkpoint: int
    gate: str
    requests: list[str]
    is_proven: bool


class CauseCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that read some of these records, or made some of these corrections."""

    id: int
    time: str
    row: Json | None
    """The row with the same key after it, made of these causes alone; None: there was none, or it has no key."""
    states: dict[str, list[Json]]
    """By operator, its rows after it, made of these causes alone."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the pipeline on the way from the sources to the table."""

    name: str
    kind: str
    inputs: list[str]
    does: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a table has a row."""

    pipeline: str
    sink: str
    checkpoint: int
    """As of this one."""
    since: int
    """The checkpoint since which the table has the row."""
    row: Json
    copies: int
    begins_after: int
    """The checkpoint after which the replays began; 0: the beginning."""
    needs_older_state: bool
    """Whether input before that is among the causes: it is not recorded any more, or was not asked for."""
    why_older: str
    """Why the replays did not begin earlier, or empty."""
    records: list[NamedRecord]
    corrections: list[NamedCorrection]
    checkpoints: list[CauseCheckpoint]
    path: list[Step]
    """From the sources to the sink."""
    manual_edits: list[str]
    """Changes of states by hand among the checkpoints. They are not repeated, and the row is the same without them."""
    other_code: bool
    """Whether the checkpoint since which the table has the row was made by other code."""
    candidates: int
    """How many records may have led to it, judging by its columns."""
    replays: int

    @property
    def unproven(self) -> int:
        """The number of causes that may be needless."""
        records = sum(not record.is_proven for record in self.records)
        return records + sum(not correction.is_proven for correction in self.corrections)


@dataclass(frozen=True)
class Asked:
    """What to explain, and within which limits."""

    live: Coordinator
    sink: str
    question: AskedRow
    checkpoint: int
    since: int
    plans: Sequence[Plan]
    origin: int
    why_older: str
    graph: Graph
    """What is upstream of the sink."""
    replays: int
    candidates: int
    hidden: Collection[str] = field(default=())


def prepare(
    live: Coordinator,
    sink: str,
    condition: str,
    checkpoint: int,
    table_as_of: Callable[[int], Snapshot | None],
    *,
    over: int | None,
    replays: int,
    candidates: int,
    hidden: Collection[str] = (),
) -> Asked:
    """Find the row, and the checkpoints to replay. Starts no Spark."""
    refuse_kind(live)
    declared = live.graph.sinks[sink].sink
    assert isinstance(declared, DeltaSink)
    snapshot = table_as_of(checkpoint)
    if snapshot is None:
        raise Rejected(
            f"sink {sink!r} had no table yet as of checkpoint {checkpoint}",
            expected="a checkpoint that the table shows",
            help="name a later one, or none, for the last",
            reason="NO_SUCH_ROW",
        )
    question = find_row(snapshot, sink, condition, tuple(declared.upserts or ()))
    recorded = RecordedPlans(live.ledger, 0)
    counting = [plan for plan in recorded.counting() if plan.id <= checkpoint]
    if not counting:
        raise _older(sink, checkpoint, "no checkpoint up to then is retained")
    # Below the lowest retained plan nothing is known, so its own input is replayed only if it is the first.
    missing = recorded.missing()
    first = 0 if missing is None else 1
    why_older = missing or ""
    if over is not None and len(counting) - over > first:
        first, why_older = len(counting) - over, f"only the last {over} checkpoints were asked about"
    origin = counting[first - 1].id if first else 0
    since, plans = _first_with(question, counting, table_as_of), counting[first:]
    plans = [plan for plan in plans if plan.id <= since]
    if not plans:
        raise _older(sink, since, why_older, or_earlier=missing is not None and since == counting[0].id)
    graph = upstream_of(live.graph, sink)
    problems = list(_problems(live, graph, plans))
    if problems:
        raise Invalid(
            "\n    ".join([f"the checkpoints up to {since} cannot be replayed:", *problems]),
            expected="sources under the names that the checkpoints have read",
            help="ask about later checkpoints only, with --over N; or give the source its name back",
            reason="CANNOT_REPLAY",
        )
    return Asked(
        live=live,
        sink=sink,
        question=question,
        checkpoint=checkpoint,
        since=since,
        plans=plans,
        origin=origin,
        why_older=why_older,
        graph=graph,
        replays=replays,
        candidates=candidates,
        hidden=hidden,
    )


def _older(sink: str, since: int, why: str, *, or_earlier: bool = False) -> Rejected:
    when = f"{since} or earlier" if or_earlier else str(since)
    return Rejected(
        f"{sink!r} has this row since checkpoint {when}, whose input cannot be replayed: {why}",
        expected="a row that a checkpoint has made whose input is still recorded",
        help="the setting num_retained says how many checkpoints are kept; with --over, ask about more of them",
        reason="RETIRED",
    )


def _first_with(question: AskedRow, counting: Sequence[Plan], table_as_of: Callable[[int], Snapshot | None]) -> int:
    """Return the first checkpoint since which all later ones have the row."""
    since = counting[-1].id
    for plan in reversed(counting[:-1]):
        try:
            snapshot = table_as_of(plan.id)
        except TidegateError:  # its version is removed
            break
        if snapshot is None or count_equal(snapshot, question) != question.copies:
            break
        since = plan.id
    return since


def _problems(live: PipelineContext, graph: Graph, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield why today's code cannot repeat these checkpoints."""
    ends: dict[str, Json | None] = {}
    for plan in plans:
        for name, part in plan.sources.items():
            if name.startswith(QUARANTINE):
                continue
            if name not in live.graph.sources and not part.empty:
                yield f"checkpoint {plan.id} has read source {name!r}, which the code does not have"
            if name in graph.sources and name in ends and part.start != ends[name]:
                yield (
                    f"checkpoint {plan.id} begins source {name!r} elsewhere than where the one before it ended: the "
                    "source was moved between them, or a backfill was swapped in"
                )
            ends[name] = part.end


def explain_row(
    asked: Asked, spark: SparkSession, folder: Path, note: Callable[[str], None] = lambda text: None
) -> Explanation:
    """Find what has led to the row, by replays in a folder that is the caller's to remove."""
    input = RecordedInput(asked.live, asked.graph.sources, asked.candidates)
    replays = Replays(asked.live, asked.graph, asked.sink, asked.plans, asked.origin, input, folder, spark)

    failed: list[TidegateError] = []

    def ask(causes: frozenset[Cause]) -> bool:
        note(f"replay {replays.made + 1}: {_counted(causes)}")
        try:
            table = replays.table_of(causes)
        except (Invalid, Rejected) as error:  # these causes alone do not make a checkpoint
            failed.append(error)
            return False
        return table is not None and count_equal(table, asked.question) == asked.question.copies

    tries = Tries[Cause](ask, asked.replays)
    enough = _enough(asked, input, replays, tries, spark, note, failed)
    choice = minimal_choice(enough, tries)
    moments = replays.moments_of(choice.causes, asked.question)
    return _answer(asked, input, choice, moments, len(enough), tries.made)


def _enough(
    asked: Asked,
    input: RecordedInput,
    replays: Replays,
    tries: Tries[Cause],
    spark: SparkSession,
    note: Callable[[str], None],
    failed: Sequence[TidegateError],
) -> list[Cause]:
    """Return causes that are enough: those of the first guess with which the row is the same.

    failed: the errors of replays so far.
    """
    others: list[Cause] = list(replays.corrections())
    if asked.origin:
        others.append(OlderState(asked.origin))
    for guess in guesses(asked.graph, asked.sink, asked.question):
        note("looking for the records" if guess.values else "reading all records")
        causes = [*others, *_records(asked, input, guess, spark)]
        with contextlib.suppress(OutOfTries):
            if tries.are_enough(frozenset(causes)):
                return causes
    reasons = list(list_manual_edits([plan for plan in asked.plans if plan.is_manual_edit]))
    reasons += [error.what for error in failed[-1:]]
    if asked.origin:
        reasons += [
            f"checkpoint {correction.checkpoint} has released rows from quarantine, perhaps from before checkpoint "
            f"{asked.origin}: {asked.why_older}"
            for correction in replays.corrections()
        ]
    if _code_has_changed(asked):
        reasons.append(f"checkpoint {asked.since} was made by other code")
    raise Rejected(
        "\n    ".join(
            [f"the recorded input of checkpoints {asked.plans[0].id} to {asked.since} does not give this row", *reasons]
        ),
        expected="a row that today's code makes of the recorded input",
        help="check out the code that made it; or ask as of another checkpoint, with --checkpoint. Values that are "
        "random, or of the clock on the wall, cannot be explained",
        reason="NOT_REPEATABLE",
    )


def _records(asked: Asked, input: RecordedInput, guess: Guess, spark: SparkSession) -> list[InputRecord]:
    """Read the records of a guess. Those of a source without conditions are narrowed by the ones that it is joined
    with."""
    found: dict[str, list[InputRecord]] = {}

    def collect(source: str, condition: Callable[..., object]) -> None:
        found[source] = input.collect(spark, asked.plans, source, condition)  # type: ignore[arg-type]

    for source in asked.graph.sources:
        if source in guess.sources:
            collect(source, guess.condition(source))
    pairs = list(links(asked.graph)) if guess.values else []
    while waiting := [(one, other) for one, other in pairs if one[0] in found and other[0] not in found]:
        (known, column), (source, name) = waiting[0]
        values = {input.values(record).get(column) for record in found[known]}
        collect(source, among(name, [value for value in values if value is not None]))
    for source in asked.graph.sources:
        if source not in found:
            collect(source, guess.condition(source))
    return sorted(record for records in found.values() for record in records)


def _answer(
    asked: Asked, input: RecordedInput, choice: Choice[Cause], moments: list[Moment], candidates: int, replays: int
) -> Explanation:
    def shown(row: Json) -> Json:
        return {name: json_value(value) for name, value in row.items() if name.lower() not in asked.hidden}

    records, corrections, needs_older = [], [], False
    for cause in sorted(choice.causes, key=lambda cause: (cause.checkpoint, type(cause).__name__, cause)):
        is_proven = cause not in choice.unproven
        if isinstance(cause, InputRecord):
            records.append(
                NamedRecord(
                    source=cause.source,
                    checkpoint=cause.checkpoint,
                    place=input.place(cause),
                    values=shown(input.values(cause)),
                    is_proven=is_proven,
                )
            )
        elif isinstance(cause, TakenRequests):
            corrections.append(
                NamedCorrection(
                    checkpoint=cause.checkpoint,
                    gate=cause.gate,
                    requests=_requests(asked, cause),
                    is_proven=is_proven,
                )
            )
        else:
            needs_older = True
    checkpoints = [
        CauseCheckpoint(
            id=moment.plan.id,
            time=moment.plan.time,
            row=shown(moment.row) if moment.row is not None else None,
            states={name: [shown(row) for row in rows] for name, rows in moment.states.items()},
        )
        for moment in moments
    ]
    return Explanation(
        pipeline=asked.live.graph.name,
        sink=asked.sink,
        checkpoint=asked.checkpoint,
        since=asked.since,
        row=shown(asked.question.row),
        copies=asked.question.copies,
        begins_after=asked.origin,
        needs_older_state=needs_older,
        why_older=asked.why_older,
        records=records,
        corrections=corrections,
        checkpoints=checkpoints,
        path=list(_path(asked.graph, asked.sink)),
        manual_edits=list(list_manual_edits([plan for plan in asked.plans if plan.is_manual_edit])),
        other_code=_code_has_changed(asked),
        candidates=candidates,
        replays=replays,
    )


def _requests(asked: Asked, correction: TakenRequests) -> list[str]:
    """Describe the requests that a checkpoint has taken up. Values of private columns are not shown."""
    plan = next(plan for plan in asked.plans if plan.id == correction.checkpoint)
    splits = asked.live.ledger.unpack(plan.sources[quarantine_name(correction.gate)].splits)
    texts = []
    for each in splits.get("requests", ()):
        request = typed.convert(each, Request)
        text = f"request {request.number} by {request.by}: {request.action}"
        corrected = [name for name in (*request.correct, *request.correct_sql) if name.lower() not in asked.hidden]
        if corrected:
            text += f", with {', '.join(corrected)} corrected"
        texts.append(text + (f" ({request.note})" if request.note else ""))
    return texts


def _code_has_changed(asked: Asked) -> bool:
    plan = next(plan for plan in asked.plans if plan.id == asked.since)
    return plan.code_fingerprint != asked.live.graph.code_fingerprint()


def _path(graph: Graph, sink: str) -> Iterator[Step]:
    for name, node in graph.sources.items():
        yield Step(name=name, kind="source", inputs=[], does=node.source.kind)
    for stage in graph.stages:
        inputs = list(stage.inputs)
        if isinstance(stage, GateNode):
            yield Step(name=stage.name, kind="gate", inputs=inputs, does=stage.gate.kind)
        elif isinstance(stage, OperatorNode):
            operator = stage.operator
            assert isinstance(operator, Operator)
            yield Step(name=stage.name, kind=operator.kind, inputs=inputs, does=", ".join(stage.spec.identity))
        else:
            yield Step(name=stage.name, kind="stage", inputs=inputs, does=sql_of(stage.function) or "a function")
    yield Step(name=sink, kind="sink", inputs=[graph.sinks[sink].input], does=graph.sinks[sink].sink.kind)


def _counted(causes: Collection[Cause]) -> str:
    count = sum(isinstance(cause, InputRecord) for cause in causes)
    return f"{count:,} record{'' if count == 1 else 's'}"
