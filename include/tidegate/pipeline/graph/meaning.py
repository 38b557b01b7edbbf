"""What operators remember must still be what they mean by it: the state of a sum is none of a maximum.

Each operator says what its state means (`Operator.meaning`), and the graph what its rows have come through; the ack
remembers both. They are compared when a checkpoint is planned, before anything runs, and once more by the job, for the
code may have changed in between.

Behind operators that replace rows more must stay, because whatever is taken back must have been given, exactly so: the
stages in between, and who gives at all. So these operators begin together or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.errors import Invalid
from tidegate.pipeline.graph.event_time import column_of, origins
from tidegate.records.records import Json

if TYPE_CHECKING:
    from tidegate.pipeline.graph.graph import Graph, OperatorNode

__all__ = ["meaning_of", "refuse_other_meanings", "refuse_untold", "same_meaning", "without_removed"]

_MEANING = ".meaning"
ROWS, BACK = "its rows", "what it takes back"
"""By input: the sources that rows come from; and of streams that replace rows, who does, and the way to here."""
_AFRESH = (
    "change it back; or begin afresh with all of them: give each, from the first that replaces rows on, another uid, "
    "and say allow_non_restored_state once; or start a new pipeline, which reads all input again by this code"
)


def meaning_of(graph: Graph) -> dict[str, Json]:
    """For an ack's memory: what the operators' states mean. No operator and no source has such a name."""
    return {f"{stage.name}{_MEANING}": _of(graph, stage) for stage in graph.operators}


def without_removed(graph: Graph, memory: Mapping[str, Json]) -> dict[str, Json]:
    """The memory without that of operators and sources that were left behind: under such a name, another one would
    begin with it."""
    there = {stage.name for stage in graph.operators}
    gone = {name.removesuffix(_MEANING) for name in memory if name.endswith(_MEANING)} - there
    lost = {f"{uid}{what}" for uid in gone for what in ("", _MEANING, ".watermark", ".expired")}
    lost |= {name for name, told in memory.items() if _is_source(told) and name not in {*graph.sources, *there}}
    return {name: told for name, told in memory.items() if name not in lost}


def _is_source(told: Json) -> bool:
    return set(told) == {"partitions"}


def _of(graph: Graph, stage: OperatorNode) -> Json:
    told = stage.operator.meaning(not graph.updating.isdisjoint(stage.inputs))
    if (chosen := told.get("event_time")) is not None:
        found = origins(graph.sources, graph.stages)
        columns = (column_of(found[name], graph.sources) for name in stage.inputs)
        told["event_time"] = [own or column for own, column in zip(chosen, columns, strict=True)]
    told[ROWS] = [graph.lineage.sources(name) for name in stage.inputs]
    told[BACK] = [
        {"of": graph.replacers(name), "way": graph.lineage.way(name)} if name in graph.updating else None
        for name in stage.inputs
    ]
    plain: Json = msgspec.json.decode(msgspec.json.encode(told))
    return plain


def refuse_other_meanings(graph: Graph, memory: Mapping[str, Json], id: int) -> None:
    """Invalid if an operator would take what checkpoint `id` remembers for something else."""
    found = [each for stage in graph.operators for each in _differences(graph, stage, memory)]
    if found:
        raise Invalid(
            "\n    ".join([f"operators remember something else than they mean now, as of checkpoint {id}:", *found]),
            expected="declarations by which their state was made; results may be added under new names, or left out",
            help="change it back; or give a changed result another name, or the operator another uid: it starts "
            "afresh; where rows come from elsewhere, let a stage unite both for one checkpoint",
            reason="STATE_CHANGED",
        )
    found = [each for stage in graph.operators for each in _other_ways(graph, stage, memory)]
    if found:
        raise Invalid(
            "\n    ".join([f"rows would be taken back that were never given, as of checkpoint {id}:", *found]),
            expected="behind what replaces rows, the same stages and operators by which those were given",
            help=_AFRESH,
            reason="STATE_CHANGED",
        )


def refuse_untold(
    graph: Graph, memory: Mapping[str, Json], there: Collection[str], began: Collection[str], id: int
) -> None:
    """Invalid if an operator is new behind one that has given rows before: it would have those taken back from it.

    there: the operators that checkpoint `id` has. began: those that have something in their states.
    """
    found = []
    for stage in graph.operators:
        was, what = memory.get(f"{stage.name}{_MEANING}", {}), f"{stage.operator.kind} {stage.name!r}"
        if stage.name in there and BACK not in was:
            continue  # a checkpoint that is open, or of an earlier version, does not say
        known = {uid for each in was.get(BACK, ()) if each for uid in each["of"]}
        if of := sorted({uid for name in stage.inputs for uid in graph.replacers(name)} & set(began) - known):
            found.append(f"{what} has none of the rows that {', '.join(of)} gave before")
        elif stage.name in began:
            late = _late_results(graph, stage, memory)
            found += [f"{what}: its result {name} has none of the rows that were given before" for name in late]
    if found:
        raise Invalid(
            "\n    ".join([f"rows would be taken back that were never given, as of checkpoint {id}:", *found]),
            expected="operators behind what replaces rows, that begin together with it",
            help="put it behind an operator of its own: declare the one that replaces rows once more, under another "
            "uid, and both begin now; or start a new pipeline, which reads all input again",
            reason="STATE_CHANGED",
        )


def same_meaning(graph: Graph, stage: OperatorNode, uid: str, memory: Mapping[str, Json]) -> bool:
    """Whether what is remembered under `uid` may be this operator's."""
    was = memory.get(f"{uid}{_MEANING}")
    return was is not None and not _differences(graph, stage, {f"{stage.name}{_MEANING}": was})


def _differences(graph: Graph, stage: OperatorNode, memory: Mapping[str, Json]) -> list[str]:
    was, now = memory.get(f"{stage.name}{_MEANING}", {}), _of(graph, stage)
    what = f"{stage.operator.kind} {stage.name!r}"
    found = [
        f"{what}: {name} is {_text(now[name])}, and was {_text(was[name])}"
        for name in was
        if name in now and name not in (ROWS, BACK) and now[name] != was[name]
    ]
    results = set(stage.operator.results)
    gone = sorted(set(was) - set(now))
    if results and gone and results.isdisjoint(was):
        found.append(f"{what}: none of its results is among those that it had, which were {', '.join(gone)}")
    for before, after in zip(was.get(ROWS, ()), now[ROWS], strict=False):
        if set(before).intersection(graph.sources) and not set(before).intersection(after):
            found.append(f"{what}: its rows come from {_text(after)}, and came from {_text(before)}")
    return found


def _other_ways(graph: Graph, stage: OperatorNode, memory: Mapping[str, Json]) -> list[str]:
    """What has changed between an operator and those in front of it that replace rows."""
    was = memory.get(f"{stage.name}{_MEANING}", {}).get(BACK, ())
    what, found = f"{stage.operator.kind} {stage.name!r}", []
    for before, after in zip(was, _of(graph, stage)[BACK], strict=False):
        if before is None or after is None:
            continue  # told as "over a stream that replaces rows"
        if gone := sorted(set(before["of"]) - set(after["of"])):
            found.append(f"{what} holds rows of {', '.join(gone)}, which nobody would ever take back")
        elif before["of"] == after["of"] and before["way"] != after["way"]:
            found.append(f"{what}: what rows of {', '.join(after['of'])} come through has changed")
    return found


def _late_results(graph: Graph, stage: OperatorNode, memory: Mapping[str, Json]) -> list[str]:
    """New results over rows that were given before they were there: unless it is about what is new there, too."""
    was = memory.get(f"{stage.name}{_MEANING}", {})
    of = [each for each in graph.operators for name in stage.inputs if each.name in graph.replacers(name)]
    new = {name for each in of for name in set(each.operator.results) - set(memory.get(f"{each.name}{_MEANING}", {}))}
    return [name for name, about in stage.operator.results.items() if of and name not in was and about not in new]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return str(value)
