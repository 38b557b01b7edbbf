"""Check whether the code can continue from a checkpoint, before anything is planned.

The trigger checks each plan; `tidegate check` checks before a deploy. Additions are allowed: new sources begin at their
beginning, new operators with an empty state (unless they follow one that retracts rows), new sinks with the next
checkpoint. Losses must be allowed by the setting allow_non_restored_state. How operators treat the types of their
inputs is only known when they run, so that is checked there (operators/inputs.py: recalled).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate import seams
from tidegate.checkpoint.publishing.table_mismatch import mismatch_error
from tidegate.checkpoint.references import acks_of, memory_of
from tidegate.connectors.sink import Head, Sink, SinkContext
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.gates.base import GateContext
from tidegate.gates.quarantine.table import QUARANTINE
from tidegate.ledger.ledger import Ledger, stamp
from tidegate.ledger.object_store import ObjectStore
from tidegate.operators.deduplicate import Deduplicate
from tidegate.operators.retractions.deletes import SINCE, RememberedDeletes
from tidegate.operators.retractions.key import IMPLIED
from tidegate.pipeline.graph.event_time import column_of, event_time_origins
from tidegate.pipeline.graph.graph import Graph, StageNode
from tidegate.pipeline.graph.meaning import refuse_misread_states, refuse_unshown, refuse_untold, same_meaning
from tidegate.pipeline.selection import outputs_of
from tidegate.protocol import rules
from tidegate.protocol.moved_sources import ranges_after
from tidegate.protocol.view import Entry, View
from tidegate.records.codec import fingerprint
from tidegate.records.place import Place, is_url, store_of
from tidegate.records.records import Declined, Json, Range, SourceChange, Tried
from tidegate.state.record import DEFAULT_GROUPS
from tidegate.state.table import STATE

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = [
    "PUT_BACK",
    "additions",
    "check",
    "check_alone",
    "check_gates",
    "check_targets",
    "declaration_of",
    "decline",
    "declined_error",
    "find_moved_tables",
    "find_unused_hooks",
    "find_unused_states",
    "growing",
    "may_lose",
    "planned_ranges",
    "refusals",
    "refuse",
    "unknown_deletes",
    "unordered",
]


PUT_BACK = (
    "put the sink back, run once, then remove it; or, if its table can never take these rows, drop them with the "
    "setting allow_non_restored_state, once: they are then in no table, and the sink needs another name if it is added "
    "again"
)


def refusals(
    graph: Graph,
    ledger: Ledger,
    config: Json,
    base: Entry,
    changes: Sequence[SourceChange] = (),
    *,
    forks: bool = False,
) -> Iterator[Invalid]:
    """Yield every reason why this code cannot plan on `base`.

    changes: the sources moved or dropped since then. forks: the code is that of a fork, which begins there.
    """
    acks = acks_of(ledger, base)
    memory = memory_of(acks)
    yield from _lost_states(graph, config, base, memory)
    yield from _lost_gates(graph, config, base)
    yield from _lost_hooks(graph, config, base)
    yield from _refuse_changed_group_count(graph, config, base)
    yield from _raised(lambda: refuse_misread_states(graph, memory, base.id))
    with_state = {_operator_of(name) for name in base.plan.commits if name.startswith(STATE)}
    started = with_state
    if not base.open:
        started = set()
        for ack in acks:
            started.update(map(_operator_of, ack.states))
    yield from _raised(lambda: refuse_untold(graph, memory, with_state, started, base.id))
    if not base.open:
        yield from _raised(lambda: refuse_unshown(graph, memory, started, base.id))
    yield from _sources(graph, config, base, changes, forks=forks)
    yield from _in_flight(graph, base)


def refuse(errors: Sequence[Invalid], id: int) -> None:
    """Raise the errors: a single one as it is, several as one that lists them all."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [f"the code cannot continue from checkpoint {id}:"]
        for error in errors:
            lines.append(f"{error.reason}: {error.what}")
        raise Invalid(
            "\n    ".join(lines),
            expected="code whose sources, operators and sinks have the same meaning as before, or additional ones",
            help="\n    ".join(dict.fromkeys(error.help for error in errors)),
            reason="INCOMPATIBLE",
        )


def check(pipeline: PipelineContext, base: Entry, changes: Sequence[SourceChange] = ()) -> list[TidegateError]:
    """Return all problems, including those that a trigger or a publisher finds before or after planning."""
    graph, config = pipeline.graph, pipeline.settings.record()
    errors: list[TidegateError] = list(_refuse_changed_kind(graph, base))
    errors += refusals(graph, pipeline.ledger, config, base, changes)
    return [*errors, *check_alone(pipeline), *find_moved_tables(pipeline, base), *_pending_for_removed(pipeline, base)]


def check_alone(pipeline: PipelineContext) -> list[TidegateError]:
    """Return the problems that do not depend on a checkpoint: of the ledger's store, of targets, and of gates."""
    graph = pipeline.graph
    errors: list[TidegateError] = list(_raised(pipeline.ledger.store.refuse_unsafe))
    for name in graph.tables:
        errors += _raised(lambda name=name: _check_target(pipeline, name))  # type: ignore[misc]
    for gated in graph.gates:
        context = GateContext(graph.name, gated.name, pipeline.place)
        errors += _raised(lambda gated=gated, context=context: gated.gate.check(context))  # type: ignore[misc]
    return errors


def additions(graph: Graph, base: Entry, changes: Sequence[SourceChange] = ()) -> list[str]:
    """Describe the additions to the code since the checkpoint, and the removals."""
    sources, tables = set(planned_ranges(base, changes)), set(base.plan.commits)
    lines = []
    for name in graph.sources:
        if name not in sources:
            lines.append(f"source {name} is new: it begins at its beginning")
    for name in graph.tables:
        if name not in tables:
            if name.startswith(STATE):
                kind = f"state {name.removeprefix(STATE)}"
            else:
                kind = f"sink {name}"
            lines.append(f"{kind} is new: it begins with the next checkpoint")
    removed_sinks = sorted(name for name in tables - set(graph.tables) if not name.startswith(STATE))
    for name in removed_sinks:
        lines.append(f"sink {name} is removed: its table stays as it is")
    removed = sorted(sources - set(graph.sources))
    for name in removed:
        lines.append(f"source {name} is removed: its position is forgotten")
    for name in find_unused_states(graph, base):
        lines.append(f"state {name.removeprefix(STATE)} is left behind, as it is")
    return lines + [f"the state of hook {name} is left behind" for name in find_unused_hooks(graph, base)]


def growing(graph: Graph) -> list[str]:
    """Return warnings about operators whose state grows as long as new keys or rows arrive, with advice."""
    reasons_to_keep = _reasons_against_expiry(graph)
    warnings = []
    for stage in graph.operators:
        growth = stage.spec.growth
        if stage.spec.note is not None:
            warnings.append(f"{stage.title}: {stage.spec.note}")
            continue
        if not stage.keeps_state:
            continue
        if growth.keeps_per_key is not None:
            advice = "if one always gets rows with new values, use approx_count_distinct"
            warnings.append(f"{stage.title} keeps {growth.keeps_per_key} until its key is forgotten: {advice}")
        if growth.keeps is None:
            continue
        why = reasons_to_keep.get(stage.name)
        if graph.updating.intersection(stage.inputs):
            why = "its input replaces rows"
        if why is not None:
            advice = f"it cannot have state_ttl, because {why}; use windows, or keys whose number is bounded"
        else:
            advice = f"with {growth.remedy}, what has not changed for that long is dropped"
        warnings.append(f"{stage.title} permanently keeps {growth.keeps}: {advice}")
    return warnings


def _reasons_against_expiry(graph: Graph) -> dict[str, str]:
    """Return, by uid, why an operator's state must not expire: other parts of the graph rely on it."""
    reasons = {}
    for stage in graph.operators:
        for stream in stage.inputs:
            if stage.keeps_state and stream in graph.updating:
                for uid in graph.replacers(stream):
                    reasons[uid] = f"{stage.title} retracts its rows"
    for gated in graph.gates:
        against = getattr(gated.gate, "against", None)
        if isinstance(against, str):
            reasons[against] = f"gate {gated.name!r} compares with all of it"
    return reasons


def unordered(graph: Graph) -> list[str]:
    """Return warnings about operators that keep the first row of each key without an order that defines it."""
    by_stream = event_time_origins(graph.sources, graph.stages)
    producers = {}
    for stage in graph.stages:
        producers.update(dict.fromkeys(stage.produces, stage))
    warnings = []
    for stage in graph.operators:
        operator, stream = stage.operator, stage.inputs[0]
        if not isinstance(operator, Deduplicate) or operator.within is not None:
            continue
        producer = producers.get(stream)
        columns = None
        if isinstance(producer, StageNode):
            columns = outputs_of(producer.function)
        only_keys = columns is not None and columns <= {name.casefold() for name in operator.by}
        if only_keys or operator.event_time or column_of(by_stream.get(stream, {}), graph.sources) is not None:
            continue
        keys = ", ".join(operator.by)
        warnings.append(
            f"{stage.title} keeps one row of each {keys}, from the first checkpoint that has one. If that has several, "
            "it keeps any of them, because without event time none is the first. If such rows differ in other columns, "
            "the result depends on how the input is cut into checkpoints: name event_time, or choose the row with "
            f'top_n(1, by="{keys}", order_by="…"), which replaces rows'
        )
    return warnings


def unknown_deletes(graph: Graph, ledger: Ledger, base: Entry) -> list[str]:
    """Return warnings about sinks that removed rows before removals were remembered, and up to which checkpoint."""
    memory = memory_of(acks_of(ledger, base))
    warnings = []
    for stage in graph.operators:
        operator = stage.operator
        if not isinstance(operator, RememberedDeletes) or operator.sink not in base.plan.commits:
            continue
        since = memory.get(stage.name, {}).get(SINCE, base.id + 1)
        if since:
            warnings.append(
                f"sink {operator.sink!r}: rows that were removed up to checkpoint {since - 1} are unknown: a late row "
                f"of such a key is added, though it may be older than its removal"
            )
    return warnings


def check_targets(
    graph: Graph, ledger: Ledger, place: Place, heads: Mapping[str, Head] | None = None, uid: str | None = None
) -> None:
    """Check that every target can be published to, before any work is done for it.

    heads: of the tables that were just read. uid: the pipeline's, if the caller has just read it.
    """
    uid = uid or ledger.start().uid
    _test_stores(graph, ledger, place, uid)
    for name, sinking in graph.tables.items():
        head = heads.get(name) if heads is not None else None
        sinking.sink.check(SinkContext(graph.name, uid, name, place, graph.by_interval, ledger.home, known_head=head))


def check_gates(graph: Graph, place: Place) -> None:
    """Check that every gate can judge."""
    for gated in graph.gates:
        gated.gate.check(GateContext(graph.name, gated.name, place))


def _test_stores(graph: Graph, ledger: Ledger, place: Place, uid: str) -> None:
    """Test each object store of the ledger and of tables once, also for pipelines started before this test existed."""
    tests: dict[str, Callable[[], None]] = {}
    if is_url(ledger.home) and isinstance(ledger.store, ObjectStore):
        tests[store_of(ledger.home)] = ledger.store.refuse_unsafe
    for name, sinking in graph.tables.items():
        target, context = sinking.sink.target(place), SinkContext(graph.name, uid, name, place, home=ledger.home)
        if is_url(target):
            tests.setdefault(store_of(target), functools.partial(sinking.sink.test_store, context))
    tried = ledger.tried() if tests else frozenset()
    new = tests.keys() - tried
    if not new:
        return
    for store in sorted(new):
        tests[store]()
    ledger.hint_tried(Tried(**stamp(seams.new_id()), stores=sorted(tried | new)))


def declaration_of(pipeline: PipelineContext) -> str:
    """Return a fingerprint of everything that an error of the declaration may depend on and that is known without
    Spark: code, settings, suites, and the definitions of the sinks' tables."""
    suites = {}
    for gated in pipeline.graph.gates:
        suites[gated.name] = gated.gate.declared_elsewhere(GateContext(pipeline.graph.name, gated.name, pipeline.place))
    contexts = pipeline.contexts(pipeline.graph.sinks)
    tables = {}
    for name, sinking in pipeline.graph.sinks.items():
        tables[name] = _table_definition(sinking.sink, contexts[name])
    config = pipeline.settings.record()
    return fingerprint(
        {"code": pipeline.graph.code_fingerprint(), "config": config, "suites": suites, "tables": tables}
    )


def _table_definition(sink: Sink, context: SinkContext) -> Json | None:
    """Return the table's metadata, which commits of rows by other writers do not change."""
    from tidegate.delta.log.snapshot import Snapshot

    try:
        table = sink.head(context).opened
    except TidegateError:
        return None
    if not isinstance(table, Snapshot):  # not a Delta table: such a target reports its errors itself
        return None
    properties = dict(table.configuration)
    return {"id": table.table_id, "schema": table.schema, "by": list(table.partition_by), "properties": properties}


def decline(pipeline: PipelineContext, id: int, error: Invalid) -> None:
    """Record that triggers are to refuse this declaration, with this error. id: the checkpoint that it cannot make."""
    declined = Declined(
        **stamp(seams.new_id()),
        id=id,
        declaration=declaration_of(pipeline),
        reason=error.reason,
        what=error.what,
        expected=error.expected,
        help=error.help,
    )
    pipeline.ledger.hint_declined(declined)


def declined_error(pipeline: PipelineContext, view: View | None = None) -> Invalid | None:
    """Return why this declaration cannot make a checkpoint, if a job has found that. None if no error is known, or if
    the declaration has changed or completed a checkpoint since.

    view: the log, if the caller has just read it. If its last entry is a completed checkpoint, nothing more is read.
    """
    view = view if view is not None else pipeline.ledger.view()
    last = view.last_completed
    if last is not None and last.id == view.last_id:
        return None
    declined = pipeline.ledger.declined()
    if declined is None or (last is not None and last.id > declined.id):
        return None
    if declined.declaration != declaration_of(pipeline):
        return None
    retry = "if it was fixed outside the code, its settings and suites: tidegate check MODULE:PIPELINE"
    return Invalid(
        declined.what,
        expected=declined.expected,
        help="\n    ".join(filter(None, (declined.help, retry))),
        reason=declined.reason,
    )


def planned_ranges(base: Entry | None, changes: Sequence[SourceChange] = ()) -> dict[str, Range]:
    """Return the range that the base planned for each declared source; the next one begins at its end (T5).

    changes: the sources that were moved, dropped or accepted since then.
    """
    planned = base.plan.sources if base is not None else {}
    declared = {name: part for name, part in planned.items() if not name.startswith(QUARANTINE)}
    return ranges_after(declared, changes)


# -- the reasons -------------------------------------------------------------------------------------------


def find_unused_states(graph: Graph, base: Entry) -> list[str]:
    """Return the states of the base whose operators the code no longer has. Operators that the graph adds in front of
    sinks do not count: the sinks' needs determine them."""
    unused = (name for name in base.plan.commits if name.startswith(STATE) and name not in graph.tables)
    return sorted(name for name in unused if name.rpartition(".")[2] not in IMPLIED)


def find_unused_hooks(graph: Graph, base: Entry) -> list[str]:
    """Return the hooks that have state in the base but would have none in the next plan. Empty state is no loss."""
    if graph.hooks_elsewhere:
        return []
    storing = {hook.name for hook in graph.hooks if hook.on_trigger is not None}
    return sorted(name for name, state in base.plan.hooks.items() if state and name not in storing)


def _operator_of(state: str) -> str:
    """Return the uid of the operator whose state has this name."""
    return state.removeprefix(STATE).partition(".")[0]


def _lost_states(graph: Graph, config: Json, base: Entry, memory: Mapping[str, Json]) -> Iterator[Invalid]:
    """Refuse if an operator with state is removed or has another uid, unless its state may be lost."""
    lost = find_unused_states(graph, base)
    if not lost or may_lose(config):
        return
    declared = [stage for stage in graph.operators if not stage.spec.is_implied]
    new = [stage for stage in declared if not set(stage.states).intersection(base.plan.commits)]
    remedies = []
    for uid in dict.fromkeys(map(_operator_of, lost)):
        for stage in new:
            if same_meaning(graph, stage, uid, memory):
                remedies.append(f'write uid="{uid}" at {stage.title}, if that is the same one')
    remedy = ", or ".join(remedies) or "put it back under its uid"
    yield Invalid(
        f"checkpoint {base.id} has state of {', '.join(name.removeprefix(STATE) for name in lost)}, which "
        f"pipeline {graph.name!r} no longer has",
        expected="every operator with state, under the uid that it had",
        help=f"{remedy}; or drop its state, with the setting allow_non_restored_state",
        reason="STATE_REMOVED",
    )


def _lost_gates(graph: Graph, config: Json, base: Entry) -> Iterator[Invalid]:
    """Refuse if a gate seems renamed: it would begin with an empty quarantine. Removing a gate is allowed."""
    lost = sorted(name for name in base.plan.commits if name.startswith(QUARANTINE) and name not in graph.tables)
    new = []
    for gate in graph.gates:
        if gate.generated and not set(gate.quarantine).issubset(base.plan.commits):
            new.append(gate.name)
    if lost and new and not may_lose(config):
        names = ", ".join(name.removeprefix(QUARANTINE) for name in lost)
        yield Invalid(
            f"checkpoint {base.id} has a quarantine of gate {names}, which pipeline {graph.name!r} no longer has, and "
            f"gate {', '.join(new)} is new",
            expected="every gate that quarantines rows, under the name that it had",
            help=f'if it is the same gate, write name="{lost[0].removeprefix(QUARANTINE)}" there; if it is another '
            "one, set allow_non_restored_state once: quarantined rows stay in the old table, and are not released",
            reason="GATE_REMOVED",
        )


def _lost_hooks(graph: Graph, config: Json, base: Entry) -> Iterator[Invalid]:
    """Refuse if a hook with state is removed or renamed, or no longer stores state, unless its state may be lost: the
    external system behind it could never be restored to that checkpoint again."""
    lost = find_unused_hooks(graph, base)
    if not lost or may_lose(config):
        return
    new = []
    for hook in graph.hooks:
        if hook.on_trigger is not None and hook.name not in base.plan.hooks:
            new.append(hook.name)
    without_trigger = [hook.name for hook in graph.hooks if hook.name in lost]
    remedies = [f'name hook {name!r} "{lost[0]}" again, if it is the same one' for name in new]
    for name in without_trigger:
        remedies.append(f"give hook {name!r} its on_trigger back")
    remedy = ", or ".join(remedies) or "put it back under its name"
    yield Invalid(
        f"checkpoint {base.id} has state of hook {', '.join(lost)}, which pipeline {graph.name!r} no longer stores",
        expected="every hook with state, under the name that it had, and with on_trigger",
        help=f"{remedy}; or drop its state, with the setting allow_non_restored_state, once: if the name is used "
        "again, it begins without state",
        reason="HOOK_REMOVED",
    )


def may_lose(config: Json) -> bool:
    """Return whether the checkpoint may lose the positions, the states of operators and hooks, the quarantines and the
    pending rows of parts that were removed from the code."""
    return bool(config.get("allow_non_restored_state", False))


def _refuse_changed_group_count(graph: Graph, config: Json, base: Entry) -> Iterator[Invalid]:
    """Refuse if keys would be hashed into another number of groups than when their state began."""
    before = base.plan.config.get("max_parallelism", DEFAULT_GROUPS)
    now = config.get("max_parallelism", DEFAULT_GROUPS)
    if before != now and any(name.startswith(STATE) for name in base.plan.commits):
        yield Invalid(
            f"max_parallelism is {now}, but the state of pipeline {graph.name!r} was begun with {before}",
            expected=f"max_parallelism {before}, permanently: it determines the place of each key in the files",
            help=f"put it back to {before}: as many tasks may run as you like; or start a new pipeline",
            reason="MAX_PARALLELISM_CHANGED",
        )


def _sources(
    graph: Graph, config: Json, base: Entry, changes: Sequence[SourceChange], *, forks: bool
) -> Iterator[Invalid]:
    """Refuse if a source is removed, or if its position is of another kind."""
    declared = planned_ranges(base, changes)
    still_declared = list(_refuse_lost_source(graph, base, changes, declared))
    if still_declared:
        yield from still_declared  # the code is from before the change, which explains all other differences
        return
    removed = sorted(set(declared) - set(graph.sources))
    if removed and not may_lose(config):
        remedies = _remedies_for_removed_sources(graph, declared, removed, forks=forks)
        yield Invalid(
            f"checkpoint {base.id} read source {', '.join(removed)}, which the pipeline no longer has",
            expected=f"sources {', '.join(sorted(declared))}",
            help=f"put the source back under its name; or, {'; or, '.join(remedies)}; or forget the positions of such "
            "sources, with the setting allow_non_restored_state, once: under that name, a source would then begin at "
            "its beginning",
            reason="SOURCE_REMOVED",
        )
    for name, before in declared.items():
        if name in graph.sources:
            kind = graph.sources[name].source.kind
        else:
            kind = before.kind
        if kind != before.kind:
            yield Invalid(
                f"source {name!r} was of kind {before.kind!r} in checkpoint {base.id} and is {kind!r} now",
                expected=f"a source of kind {before.kind!r}: its position means nothing to another kind",
                help="give the new source another name, and drop the old position with allow_non_restored_state",
                reason="SOURCE_REPLACED",
            )


def _remedies_for_removed_sources(
    graph: Graph, declared: Mapping[str, Range], removed: Sequence[str], *, forks: bool
) -> list[str]:
    if forks:  # the fork does not exist yet, so its sources cannot be moved or dropped
        return ["if it has another name now, or is removed: move or drop it in the fork, once that has begun"]
    moves = []
    for old in removed:
        for name in sorted(graph.sources.keys() - declared.keys()):
            if graph.sources[name].source.kind == declared[old].kind:
                moves.append(f"tidegate source move MODULE:PIPELINE {old} {name}")
    remedies = []
    if moves:
        remedies.append(f"if it has another name now: {', or '.join(moves)}")
    remedies.append(f"if it is removed for good: tidegate source drop MODULE:PIPELINE {removed[0]}")
    return remedies


def _refuse_lost_source(
    graph: Graph, base: Entry, changes: Sequence[SourceChange], declared: Mapping[str, Range]
) -> Iterator[Invalid]:
    """Refuse a source that was moved or dropped since the base, and that the code still has: it would begin again, and
    read everything twice."""
    last_changes = {change.name: change for change in changes if change.position is None}
    for name in sorted(last_changes.keys() & graph.sources.keys() - declared.keys()):
        to = last_changes[name].to
        if to is None:
            change = "dropped"
            undo = f"or return to before it was dropped: tidegate rollback MODULE:PIPELINE --to {base.id}"
        else:
            change = f"moved to {to!r}"
            undo = f"or move it back: tidegate source move MODULE:PIPELINE {to} {name}"
        yield Invalid(
            f"source {name!r} was {change} after checkpoint {base.id}, and pipeline {graph.name!r} still has it: it "
            "would read everything again",
            expected=f"code without source {name!r}, for one checkpoint",
            help=f"run the changed code; {undo}",
            reason="SOURCE_STILL_THERE",
        )


def _in_flight(graph: Graph, base: Entry) -> Iterator[Invalid]:
    """Refuse unless every channel with in-flight rows still exists, with the same producer."""
    if base.manifest is None:
        return
    for job, unread in base.manifest.in_flight.items():
        producers = {}
        for part in unread:
            for stream in part.channels:
                producers[stream] = part.job
        channels = graph.channels_of_jobs.get(job, {})
        changed = sorted(stream for stream, producer in producers.items() if channels.get(stream) != producer)
        if changed:
            yield Invalid(
                f"job {job!r} lags: as of checkpoint {base.id} it has yet to read {', '.join(changed)} from "
                f"{', '.join(sorted(set(producers.values())))}, and the code no longer has that",
                expected=f"job {job!r} with the same channels, until it has read all rows in flight",
                help="put the code back, let one checkpoint wait for all jobs (unaligned = false), then change it; or "
                f"drop those rows: tidegate rollback MODULE:PIPELINE --to {base.id} --drop-in-flight",
                reason="IN_FLIGHT",
            )


def _refuse_changed_kind(graph: Graph, base: Entry) -> Iterator[Invalid]:
    from tidegate.checkpoint.intervals import refuse_changed_kind

    yield from _raised(lambda: refuse_changed_kind(graph, View((base,))))


def _check_target(pipeline: PipelineContext, name: str) -> None:
    pipeline.graph.tables[name].sink.check(pipeline.context(name))


def find_moved_tables(pipeline: PipelineContext, base: Entry) -> Iterator[TidegateError]:
    """Find sinks whose target is not the table to which they published before."""
    if pipeline.ledger.published(base.id) is None:
        return
    for name, sinking in pipeline.graph.tables.items():
        after = None
        if base.manifest is not None:
            after = rules.after_publish([base.manifest], name)
        if after is None:
            continue
        try:
            head = sinking.sink.head(pipeline.context(name))
        except Invalid:
            continue  # reported already
        if head.last_entry is None:
            why = f"the table should hold checkpoint {after}, it holds None"
            yield mismatch_error(pipeline, View((base,)), sinking, head, why)


def _pending_for_removed(pipeline: PipelineContext, base: Entry) -> Iterator[Invalid]:
    """Find removed sinks whose table does not have everything yet."""
    if base.manifest is None or pipeline.ledger.published(base.id) is not None:
        return
    if may_lose(pipeline.settings.record()):
        return
    for name, part in base.manifest.tables.items():
        if name not in pipeline.graph.tables and rules.has_unpublished(part) and not name.startswith(STATE):
            yield Invalid(
                f"sink {name!r} is not in the pipeline any more, but has pending rows of checkpoint {base.id}",
                expected=f"sink {name!r}, until everything that is completed is published on its table",
                help=PUT_BACK,
                reason="SINK_REMOVED",
            )


def _raised(call: Callable[[], object]) -> Iterator[Invalid]:
    """Yield the Invalid that a call raises. Unavailable is not a refusal, and is raised."""
    try:
        call()
    except Unavailable:
        raise
    except Invalid as error:
        yield error
