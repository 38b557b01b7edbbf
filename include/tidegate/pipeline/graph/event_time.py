"""Event time through the graph: which sources an operator's watermark comes from, and what is wrong with that.

A watermark is not handed on row by row: an operator's is the least of those of all sources that its rows come from,
held back by what the operators between them may hold rows back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.config.keys import KEYS
from tidegate.operators.base import Operator
from tidegate.pipeline.graph.gated import GateNode

if TYPE_CHECKING:
    from tidegate.pipeline.graph.nodes import Node, SourceNode

__all__ = ["column_of", "delay_s", "event_time_problems", "origins"]

Origins = dict[str, float]
"""Sources with event time, and by how many seconds rows may be behind their watermarks."""


def origins(sources: Mapping[str, SourceNode], ordered: Sequence[Node]) -> dict[str, Origins]:
    """For each stream, and for each operator its input, where event time comes from. `ordered`: inputs first."""
    found: dict[str, Origins] = {name: {name: 0.0} if s.event_time else {} for name, s in sources.items()}
    for stage in ordered:
        into: Origins = {}
        for name in stage.inputs:
            for source, behind in found.get(name, {}).items():
                into[source] = max(behind, into.get(source, 0.0))
        operator = _operator(stage)
        found[input_of(stage.name)] = into
        if operator is not None and operator.gives_all:
            found |= {made: {} for made in stage.produces}  # what is looked up is of any time: it holds nothing back
            continue
        held = operator.lag_s if operator is not None else 0.0
        found |= {made: {source: behind + held for source, behind in into.items()} for made in stage.produces}
    return found


def input_of(stage: str) -> str:
    """The name under which `origins` tells of what goes into a stage. No stream has such a name."""
    return f"> {stage}"


def column_of(into: Origins, sources: Mapping[str, SourceNode]) -> str | None:
    """The column that the sources of a stream agree on."""
    names = {sources[name].event_time for name in into}
    return names.pop() if len(names) == 1 else None


def delay_s(sourcing: SourceNode, default: object) -> float:
    """How many seconds later than the newest row of a source a row may come."""
    parsed: float = KEYS["watermark"].parse(default if sourcing.watermark is None else sourcing.watermark)
    return parsed


def event_time_problems(sources: Sequence[SourceNode], ordered: Sequence[Node]) -> list[str]:
    """What is wrong with the declarations, all at once."""
    problems = [problem for s in sources for problem in _source_problems(s)]
    by_name = {s.name: s for s in sources}
    found, carried = origins(by_name, ordered), _carried(ordered)
    for stage in ordered:
        operator = _operator(stage)
        if operator is not None and operator.uses_event_time:
            of_inputs = [found.get(name, {}) for name in stage.inputs]
            columns = [sorted({str(by_name[name].event_time) for name in into}) for into in of_inputs]
            what = f"{operator.kind} {stage.name!r}"
            problems += [f"{what}: {problem}" for problem in operator.event_time_problems(columns)]
            problems += [f"{what}: {problem}" for problem in _lost_times(stage, operator, columns, ordered)]
            chosen = () if operator.problems() else operator.meaning(over_updates=False).get("event_time", ())
            for name, own, declared in zip(stage.inputs, chosen, columns, strict=False):
                column = own if own is not None or len(declared) != 1 else declared[0]
                told = [each.untimely(column) for each in carried.get(name, ())] if isinstance(column, str) else []
                problems += [f"{what}: {problem}" for problem in told if problem is not None]
    return problems


def _carried(ordered: Sequence[Node]) -> dict[str, list[Operator]]:
    """By stream, the operators that have made rows of which it may still have the columns."""
    found: dict[str, list[Operator]] = {}
    for stage in ordered:
        operator = _operator(stage)
        known = [each for name in stage.inputs for each in found.get(name, ())]
        if operator is not None:
            known = [operator] if operator.renews else [*known, operator]
        found |= dict.fromkeys(stage.produces, known)
    return found


def _lost_times(
    stage: Node, operator: Operator, columns: Sequence[Sequence[str]], ordered: Sequence[Node]
) -> Iterator[str]:
    """Behind an operator that gives other columns than it takes, the source's time is no more."""
    made = {each.name: each for each in ordered}
    for name, chosen, of_sources in zip(stage.inputs, operator.goes_by, columns, strict=False):
        time, maker = chosen or (of_sources[0] if len(of_sources) == 1 else None), made.get(name)
        while isinstance(maker, GateNode):
            maker = made.get(maker.input)
        there = operator_of.columns if maker is not None and (operator_of := _operator(maker)) is not None else None
        if time is not None and maker is not None and there and time.casefold() not in map(str.casefold, there):
            yield (
                f"it goes by {time!r}, which the rows of {maker.name!r} do not have; they have {', '.join(there)}: "
                'name one of them, event_time="…"'
            )


def _source_problems(sourcing: SourceNode) -> list[str]:
    what, problems = f"source {sourcing.name!r}", []
    if sourcing.event_time is not None and (not isinstance(sourcing.event_time, str) or not sourcing.event_time):
        problems.append(f"{what} has event_time={sourcing.event_time!r}: name one of its columns")
    if sourcing.watermark is not None and sourcing.event_time is None:
        problems.append(f'{what} has a watermark, but no event time: name the column, as in event_time="at"')
    try:
        delay_s(sourcing, 0)
    except ValueError as error:
        why = f" ({error})" if str(error) else ""
        problems.append(f"{what} has watermark={sourcing.watermark!r}{why}: expected {KEYS['watermark'].expected}")
    return problems


def _operator(stage: Node) -> Operator | None:
    found = getattr(stage, "operator", None)
    return found if isinstance(found, Operator) else None
