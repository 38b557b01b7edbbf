"""Event time through the graph: the sources of each operator's watermark, and wrong declarations.

Watermarks do not travel with the rows. An operator's watermark is the minimum over all sources of its rows, minus the
longest time for which the operators in between may hold rows back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tidegate.config.keys import KEYS, seconds_in
from tidegate.pipeline.graph.nodes import GateNode, OperatorNode, spec_of

if TYPE_CHECKING:
    from tidegate.operators.spec import OperatorSpec, OutputSpec
    from tidegate.pipeline.graph.nodes import Node, SourceNode

__all__ = [
    "column_of",
    "delay_s",
    "event_time_problems",
    "idle_after_s",
    "lag_by_source",
    "max_ahead_s",
    "sources_too_far_ahead",
]

Origins = dict[str, float]
"""Sources with event time, each with the number of seconds by which rows may lag its watermark."""


def lag_by_source(sources: Mapping[str, SourceNode], ordered: Sequence[Node]) -> dict[str, Origins]:
    """Return where event time comes from, for each stream and each operator's input. `ordered`: inputs first."""
    by_stream: dict[str, Origins] = {name: {name: 0.0} if s.event_time else {} for name, s in sources.items()}
    for stage in ordered:
        into: Origins = {}
        for name in stage.inputs:
            for source, behind in by_stream.get(name, {}).items():
                into[source] = max(behind, into.get(source, 0.0))
        spec = spec_of(stage)
        by_stream[into_operator(stage.name)] = into
        if spec is not None and spec.output.is_lookup_table:
            by_stream |= {
                stream: {} for stream in stage.produces
            }  # rows of a lookup table have any time: they hold nothing back
            continue
        lag_s = spec.output.lag_s if spec is not None else 0.0
        by_stream |= {stream: {source: behind + lag_s for source, behind in into.items()} for stream in stage.produces}
    return by_stream


def into_operator(stage: str) -> str:
    """Return the name under which `lag_by_source` has a stage's input. No stream has such a name."""
    return f"> {stage}"


def column_of(into: Origins, sources: Mapping[str, SourceNode]) -> str | None:
    """Return the column that the sources of a stream agree on, or None."""
    names = {sources[name].event_time for name in into}
    return names.pop() if len(names) == 1 else None


def delay_s(sourcing: SourceNode, default: object) -> float:
    """Return how many seconds later than a source's newest row a row may come."""
    parsed: float = KEYS["watermark"].parse(default if sourcing.watermark is None else sourcing.watermark)
    return parsed


def idle_after_s(sourcing: SourceNode, default: object) -> float | None:
    """Return after how many seconds without rows a source is not waited for. None: never."""
    given = default if sourcing.idle_timeout is None else sourcing.idle_timeout
    parsed: float | None = KEYS["idle_timeout"].parse(given)
    return parsed


def max_ahead_s(sourcing: SourceNode) -> float | None:
    """Return by how many seconds a source may be ahead of others. None: nothing is said, or no duration."""
    try:
        seconds = seconds_in(sourcing.max_ahead) if sourcing.max_ahead is not None else -1.0
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def sources_too_far_ahead(
    sources: Mapping[str, SourceNode], reached: Mapping[str, datetime], with_input: Collection[str]
) -> dict[str, str]:
    """Return the sources that are not to be read now, each with the one that it waits for: the furthest behind.

    reached: the watermarks, as far as they are known. with_input: the sources that have something new. One of those is
    always read, so that waiting comes to an end.
    """
    behind = sorted((reached[name], name) for name in with_input if name in reached)
    waiting = {}
    for name in with_input:
        seconds = max_ahead_s(sources[name])
        if behind and seconds is not None and name in reached:
            time, slowest = behind[0]
            if (reached[name] - time).total_seconds() > seconds:
                waiting[name] = slowest
    return waiting


def event_time_problems(sources: Sequence[SourceNode], ordered: Sequence[Node]) -> list[str]:
    """List everything that is wrong with the declarations."""
    problems = [problem for s in sources for problem in _source_problems(s)]
    by_name = {s.name: s for s in sources}
    by_stream, column_makers = lag_by_source(by_name, ordered), _column_makers(ordered)
    old_times = _old_times(by_name, by_stream, ordered)
    for stage in ordered:
        spec = spec_of(stage)
        if spec is None or not isinstance(stage, OperatorNode) or not spec.uses_event_time:
            continue
        subject = stage.title
        columns = []
        for name in stage.inputs:
            columns.append(sorted({str(by_name[source].event_time) for source in by_stream.get(name, {})}))
        problems += [f"{subject}: {problem}" for problem in spec.event_time_problems(columns)]
        problems += [f"{subject}: {problem}" for problem in _lost_times(stage, spec, columns, ordered)]
        for name, input, declared in zip(stage.inputs, spec.timed_inputs, columns, strict=False):
            column = input.column if input.column is not None or len(declared) != 1 else declared[0]
            if isinstance(column, str) and stage.keeps_state:
                makers = column_makers.get(name, ())
                problems += [f"{subject}: {maker.untimely[column]}" for maker in makers if column in maker.untimely]
                if column in old_times.get(name, ()):
                    problems.append(f"{subject}: {_of_any_age(column)}")
    return problems


def _of_any_age(column: str) -> str:
    return (
        f"event_time={column!r} is a time of rows that a join keeps, or every(…), however old they are: they would "
        "come too late, and be dropped; behind a join, make a column of the later one of both sides' times in a stage, "
        f'as in greatest({column}, …), and name that, event_time="…", or give the join bounds, within="…"; put '
        "every(…) behind this"
    )


def _old_times(
    sources: Mapping[str, SourceNode], by_stream: Mapping[str, Origins], ordered: Sequence[Node]
) -> dict[str, set[str]]:
    """By stream, the columns of event time in which its rows may be of any age."""
    old: dict[str, set[str]] = {}
    for stage in ordered:
        spec = spec_of(stage)
        columns = {column for name in stage.inputs for column in old.get(name, ())}
        if spec is not None:
            columns = set() if spec.output.columns is not None else columns
            into = [by_stream.get(name, {}) for name in stage.inputs]
            sides = [_times_of(spec, place, sources, origins) for place, origins in enumerate(into)]
            kept = spec.output.inputs_of_any_age
            columns |= {column for place in kept if place < len(sides) for column in sides[place]}
            columns -= {column for place, side in enumerate(sides) if kept and place not in kept for column in side}
        old |= dict.fromkeys(stage.produces, columns)
    return old


def _times_of(spec: OperatorSpec, place: int, sources: Mapping[str, SourceNode], into: Origins) -> set[str]:
    """Return the columns of event time of an operator's input: its own choice, or those that the sources declare."""
    input = spec.timed_input(place)
    chosen = input.column if input is not None else None
    return {chosen} if chosen is not None else {str(sources[name].event_time) for name in into}


def _column_makers(ordered: Sequence[Node]) -> dict[str, list[OutputSpec]]:
    """By stream, what operators say of columns that its rows may still have."""
    by_stream: dict[str, list[OutputSpec]] = {}
    for stage in ordered:
        spec = spec_of(stage)
        makers = [upstream for name in stage.inputs for upstream in by_stream.get(name, ())]
        if spec is not None:
            makers = [spec.output] if spec.output.columns is not None else [*makers, spec.output]
        by_stream |= dict.fromkeys(stage.produces, makers)
    return by_stream


def _lost_times(
    stage: Node, spec: OperatorSpec, columns: Sequence[Sequence[str]], ordered: Sequence[Node]
) -> Iterator[str]:
    """Report time columns that an operator upstream has dropped, because it outputs other columns than it takes."""
    by_name = {node.name: node for node in ordered}
    for name, input, declared in zip(stage.inputs, spec.timed_inputs, columns, strict=False):
        time = input.column or (declared[0] if len(declared) == 1 else None)
        maker = by_name.get(name)
        while isinstance(maker, GateNode):
            maker = by_name.get(maker.input)
        upstream = spec_of(maker)
        has = upstream.output.columns if upstream is not None else None
        if time is None or maker is None or not has:
            continue
        if time.casefold() not in map(str.casefold, has):
            yield (
                f"its time column {time!r} is not in the rows of {maker.name!r}, which have {', '.join(has)}: "
                'name one of them, event_time="…"'
            )


def _source_problems(node: SourceNode) -> list[str]:
    subject, problems = f"source {node.name!r}", []
    if node.event_time is not None and (not isinstance(node.event_time, str) or not node.event_time):
        problems.append(f"{subject} has event_time={node.event_time!r}: name one of its columns")
    if node.watermark is not None and node.event_time is None:
        problems.append(f'{subject} has a watermark, but no event time: name the column, as in event_time="at"')
    if node.event_time is None and node.idle_timeout is not None:
        problems.append(
            f"{subject} says when event time does not wait for it (idle_timeout), but has none: name the column, as in "
            'event_time="at"'
        )
    if node.max_ahead is not None and (node.event_time is None or max_ahead_s(node) is None):
        problems.append(
            f'{subject} has max_ahead={node.max_ahead!r}: expected a duration such as "1 hour", and event_time=…, the '
            "column that tells how far it is"
        )
    if not isinstance(node.bounded, bool):
        problems.append(
            f"{subject} has bounded={node.bounded!r}: say True if there will be no more input than there is"
        )
    try:
        idle_after_s(node, "never")
    except ValueError:
        expected = KEYS["idle_timeout"].expected
        problems.append(f"{subject} has idle_timeout={node.idle_timeout!r}: expected {expected}")
    try:
        delay_s(node, 0)
    except ValueError as error:
        why = f" ({error})" if str(error) else ""
        problems.append(f"{subject} has watermark={node.watermark!r}{why}: expected {KEYS['watermark'].expected}")
    return problems
