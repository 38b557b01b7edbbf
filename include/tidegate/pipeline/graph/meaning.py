"""Checks that an operator's declaration still fits its state: the state of a sum is useless for a maximum.

Each operator describes the meaning of its state (`Operator.meaning`), and the graph describes the path of its rows. The
ack records both. They are compared when a checkpoint is planned, and again by the job, because the code may have
changed in between.

After operators with retractions, more must stay the same, because a row can only be retracted exactly as it was
emitted: the stages in between, and the set of operators that emit. So these operators start together or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.errors import Invalid
from tidegate.operators.retractions.materializer import WAY, Materializer
from tidegate.pipeline.graph.event_time import column_of, event_time_origins
from tidegate.protocol.moved_sources import under_new_names
from tidegate.records.records import Json, SourceChange
from tidegate.state.evolution import RECOMPUTE

if TYPE_CHECKING:
    from tidegate.pipeline.graph.graph import Graph, OperatorNode

__all__ = [
    "meaning_of",
    "refuse_misread_states",
    "refuse_unshown",
    "refuse_untold",
    "same_meaning",
    "sources_under_new_names",
    "unshown",
    "ways_to_begin",
    "without_removed",
]

_MEANING = ".meaning"
ROWS, BACK = "its rows", "what it takes back"
"""By input: the sources of its rows; for a stream that replaces rows, the operators that do and the path from them."""
_AFRESH = (
    "revert the change; or start all of them afresh: give each, from the first that replaces rows on, a new uid, "
    "and set allow_non_restored_state once; or start a new pipeline, which reads all input again with this code; "
    + RECOMPUTE
)


def meaning_of(graph: Graph) -> dict[str, Json]:
    """Return what the operators' states mean, for an ack's memory. No operator and no source has such a name."""
    return {f"{stage.name}{_MEANING}": _stage_meaning(graph, stage) for stage in graph.operators}


def without_removed(graph: Graph, memory: Mapping[str, Json]) -> dict[str, Json]:
    """Return the memory without removed operators and sources: a new one with such a name would start from it."""
    operators = {stage.name for stage in graph.operators}
    removed = {name.removesuffix(_MEANING) for name in memory if name.endswith(_MEANING)} - operators
    dropped = set()
    for uid in removed:
        for suffix in ("", _MEANING, ".watermark", ".expired"):
            dropped.add(f"{uid}{suffix}")
    for name, entry in memory.items():
        if _is_source(entry) and name not in graph.sources and name not in operators:
            dropped.add(name)
    return {name: entry for name, entry in memory.items() if name not in dropped}


def sources_under_new_names(memory: Mapping[str, Json], changes: Sequence[SourceChange]) -> dict[str, Json]:
    """Return the memory with the event time of sources that were moved under their present names."""
    source_times = {name: entry for name, entry in memory.items() if _is_source(entry)}
    other_entries = {name: entry for name, entry in memory.items() if name not in source_times}
    return {**under_new_names(source_times, changes), **other_entries}


def _is_source(entry: Json) -> bool:
    return set(entry) == {"partitions"}


def _stage_meaning(graph: Graph, stage: OperatorNode) -> Json:
    meaning = stage.operator.meaning(not graph.updating.isdisjoint(stage.inputs))
    chosen = meaning.get("event_time")
    if chosen is not None:
        by_stream = event_time_origins(graph.sources, graph.stages)
        if stage.spec.inputs.lookup_table:
            timed = stage.inputs[:-1]
        else:
            timed = stage.inputs
        columns = (column_of(by_stream[name], graph.sources) for name in timed)
        meaning["event_time"] = [choice or column for choice, column in zip(chosen, columns, strict=True)]
    meaning[ROWS] = [graph.lineage.sources(name) for name in stage.inputs]
    meaning[BACK] = [_meaning_of_retractions(graph, name) for name in stage.inputs]
    plain: Json = msgspec.json.decode(msgspec.json.encode(meaning))
    return plain


def _meaning_of_retractions(graph: Graph, stream: str) -> Json | None:
    if stream not in graph.updating:
        return None
    return {"of": graph.replacers(stream), "way": graph.lineage.path_hash(stream)}


def refuse_misread_states(graph: Graph, memory: Mapping[str, Json], id: int) -> None:
    """Raise Invalid if an operator would misread its state at checkpoint `id`.

    Operators that the graph adds in front of sinks do not count: they start without state instead.
    """
    declared = [stage for stage in graph.operators if not stage.spec.is_implied]
    problems = []
    for stage in declared:
        for problem in _differences(graph, stage, memory):
            problems.append(problem)
    if problems:
        raise Invalid(
            "\n    ".join([f"operators were declared differently as of checkpoint {id}:", *problems]),
            expected="the declarations by which their state was made; results may be added under new names, or dropped",
            help="revert the change; or give a changed result another name, or the operator another uid: it starts "
            "afresh; if rows now come from another source, let a stage unite both for one checkpoint; " + RECOMPUTE,
            reason="STATE_CHANGED",
        )
    problems = []
    for stage in declared:
        for problem in _path_changes(graph, stage, memory):
            problems.append(problem)
    if problems:
        raise Invalid(
            "\n    ".join([f"rows would be retracted that were never emitted, as of checkpoint {id}:", *problems]),
            expected="after an operator that replaces rows, the same stages and operators as when they were emitted",
            help=_AFRESH,
            reason="STATE_CHANGED",
        )


def refuse_untold(
    graph: Graph, memory: Mapping[str, Json], present: Collection[str], began: Collection[str], id: int
) -> None:
    """Raise Invalid if a new operator follows one that has emitted rows: it would have to retract rows it never saw.

    present: the operators in checkpoint `id`. began: the operators with rows in their states.
    """
    problems = []
    for stage in graph.operators:
        if stage.spec.is_implied:
            continue
        before = memory.get(f"{stage.name}{_MEANING}", {})
        subject = stage.title
        if stage.name in present and BACK not in before:
            continue  # unknown, since the checkpoint is open, or of an earlier version
        recorded: set[str] = set()
        for entry in before.get(BACK, ()):
            if entry:
                recorded.update(entry["of"])
        replacers: set[str] = set()
        for name in stage.inputs:
            replacers.update(graph.replacers(name))
        missed = sorted(replacers & set(began) - recorded)
        if missed:
            problems.append(f"{subject} has none of the rows that {', '.join(missed)} emitted before")
        elif stage.name in began:
            late = _late_results(graph, stage, memory)
            for name in late:
                problems.append(f"{subject}: its result {name} has none of the rows that were emitted before")
    if problems:
        raise Invalid(
            "\n    ".join([f"rows would be retracted that were never emitted, as of checkpoint {id}:", *problems]),
            expected="operators that start together with the operator that replaces rows",
            help="declare the operator that replaces rows a second time, under another uid, for this one: both then "
            "start now; or start a new pipeline, which reads all input again",
            reason="STATE_CHANGED",
        )


def refuse_unshown(graph: Graph, memory: Mapping[str, Json], began: Collection[str], id: int) -> None:
    """Raise Invalid if a materializer would start without the rows that were emitted before it, and cannot get them.

    Where the key is uncertain, this is refused at run time. began: the operators with rows in their states at
    checkpoint `id`.
    """
    problems, beginning = [], []
    for stage in graph.operators:
        operator, stream = stage.operator, stage.inputs[0]
        if not isinstance(operator, Materializer) or not operator.certain or graph.can_show(stage):
            continue
        replacers = sorted(set(graph.replacers(stream)) & set(began))
        if replacers and memory.get(stage.name, {}).get(WAY) != graph.lineage.path_hash(stream):
            problems.append(unshown(graph, stage, replacers))
            beginning.append(stage)
    if problems:
        raise Invalid(
            "\n    ".join([f"rows would be missing in tables, as of checkpoint {id}:", *problems]),
            expected="a sink whose keys tell the rows of its stream apart, or operators that show what they emitted",
            help=ways_to_begin(graph, beginning),
            reason="STATE_CHANGED",
        )


def ways_to_begin(graph: Graph, stages: Sequence[OperatorNode]) -> str:
    """Return a help text for materializers that cannot get the rows that were emitted before them."""
    remedies = [f"compute the rows again: tidegate backfill MODULE:{graph.name} --from beginning --swap"]
    if any(graph.can_show(stage, across_jobs=True) for stage in stages):
        remedies.append("put the sink and all stages before it into one job, where the rows can be computed again")
    if not all(isinstance(stage.operator, Materializer) and stage.operator.certain for stage in stages):
        remedies.append("write the stages before the sink as `select` and `where`, which are known to keep keys")
    remedies.append("give the sink keys that contain those of its stream")
    return "; or ".join(remedies)


def unshown(graph: Graph, stage: OperatorNode, replacers: Sequence[str]) -> str:
    """Return the problem of a materializer that starts after these operators have emitted rows."""
    return (
        f"{stage.title} has none of the rows of {stage.inputs[0]!r} that were emitted before: not all of them can be "
        f"computed again from the state of {', '.join(replacers)}"
    )


def same_meaning(graph: Graph, stage: OperatorNode, uid: str, memory: Mapping[str, Json]) -> bool:
    """Return whether the state recorded under `uid` fits this operator."""
    recorded = memory.get(f"{uid}{_MEANING}")
    return recorded is not None and not _differences(graph, stage, {f"{stage.name}{_MEANING}": recorded})


def _differences(graph: Graph, stage: OperatorNode, memory: Mapping[str, Json]) -> list[str]:
    was, now = memory.get(f"{stage.name}{_MEANING}", {}), _stage_meaning(graph, stage)
    subject = stage.title
    problems = []
    for name in was:
        if name in now and name not in (ROWS, BACK) and now[name] != was[name]:
            is_code = name in stage.spec.meant_by_code
            if is_code:
                how = "has changed"
            else:
                how = f"is {_text(now[name])}, and was {_text(was[name])}"
            problems.append(f"{subject}: {name} {how}")
    for name in stage.spec.output.results_that_share_state:
        others = sorted(other for other in was if was[other] == now[name])
        if name not in was and others:
            problems.append(
                f"{subject}: {name} counts what {' and '.join(others)} did: values that are there already would not "
                "count for it"
            )
    results = set(stage.spec.output.results)
    missing = sorted(set(was) - set(now))
    if results and missing and results.isdisjoint(was):
        problems.append(f"{subject}: none of its results is among those that it had, which were {', '.join(missing)}")
    for recorded, after in zip(was.get(ROWS, ()), now[ROWS], strict=False):
        if set(recorded).intersection(graph.sources) and not set(recorded).intersection(after):
            problems.append(f"{subject}: its rows come from {_text(after)}, and came from {_text(recorded)}")
    return problems


def _path_changes(graph: Graph, stage: OperatorNode, memory: Mapping[str, Json]) -> list[str]:
    """List the changes between an operator and the operators upstream that replace rows."""
    recorded = memory.get(f"{stage.name}{_MEANING}", {}).get(BACK, ())
    subject, problems = stage.title, []
    for before, after in zip(recorded, _stage_meaning(graph, stage)[BACK], strict=False):
        if before is None or after is None:
            continue  # reported as "over a stream that replaces rows"
        removed = sorted(set(before["of"]) - set(after["of"]))
        if removed:
            problems.append(f"{subject} holds rows of {', '.join(removed)}, which would never be retracted")
        elif before["of"] == after["of"] and before["way"] != after["way"]:
            problems.append(f"{subject}: the stages between {', '.join(after['of'])} and it have changed")
    return problems


def _late_results(graph: Graph, stage: OperatorNode, memory: Mapping[str, Json]) -> list[str]:
    """List new results that miss rows emitted earlier. One over a column that is new upstream, too, misses none."""
    recorded = memory.get(f"{stage.name}{_MEANING}", {})
    uids: set[str] = set()
    for name in stage.inputs:
        uids.update(graph.replacers(name))
    if not uids:
        return []
    new_columns: set[str] = set()
    for node in graph.operators:
        if node.name in uids:
            new_columns |= set(node.spec.output.results) - set(memory.get(f"{node.name}{_MEANING}", {}))
    results = stage.spec.output.results
    return [name for name, column in results.items() if name not in recorded and column not in new_columns]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return str(value)
