"""Event time through the graph: the sources of each operator's watermark, and wrong declarations.

Watermarks do not travel with the rows. An operator's watermark is the minimum over all sources of its rows, minus the
longest time for which the operators in between may hold rows back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from tidegate.config.keys import KEYS, seconds_in
from tidegate.pipeline.graph.nodes import GateNode, OperatorNode, row_inputs, spec_of

if TYPE_CHECKING:
    from tidegate.operators.spec import OperatorSpec, OutputSpec
    from tidegate.pipeline.graph.nodes import Node, SourceNode

__all__ = [
    "column_of",
    "delay_s",
    "event_time_origins",
    "event_time_problems",
    "idle_after_s",
    "max_ahead_s",
    "sources_to_pause",
]

Origins = dict[str, float]
"""Sources with event time, each with the number of seconds by which rows may lag its watermark."""


def event_time_origins(sources: Mapping[str, SourceNode], ordered: Sequence[Node]) -> dict[str, Origins]:
    """Return where event time comes from, for each stream and each operator's input. `ordered`: inputs first."""
    by_stream: dict[str, Origins] = {}
    for name, s in sources.items():
        by_stream[name] = {name: 0.0} if s.event_time else {}
    for stage in ordered:
        into: Origins = {}
        for name in row_inputs(stage):
            for source, lag in by_stream.get(name, {}).items():
                into[source] = max(lag, into.get(source, 0.0))
        spec = spec_of(stage)
        by_stream[into_operator(stage.name)] = into
        if spec is not None and spec.output.is_lookup_table:
            # Rows of a lookup table may be of any time, so they do not hold event time back.
            for stream in stage.produces:
                by_stream[stream] = {}
            continue
        lag_s = spec.output.lag_s if spec is not None else 0.0
        for stream in stage.produces:
            by_stream[stream] = {source: lag + lag_s for source, lag in into.items()}
    return by_stream


def into_operator(stage: str) -> str:
    """Return the name under which `event_time_origins` has a stage's input. No stream has such a name."""
    return f"> {stage}"


def column_of(into: Origins, sources: Mapping[str, SourceNode]) -> str | None:
    """Return the column that the sources of a stream agree on, or None."""
    names = {sources[name].event_time for name in into}
    return names.pop() if len(names) == 1 else None


def delay_s(sourcing: SourceNode, default: object) -> float:
    """Return by how many seconds a source's watermark trails its newest row."""
    parsed: float = KEYS["watermark"].parse(default if sourcing.watermark is None else sourcing.watermark)
    return parsed


def idle_after_s(sourcing: SourceNode, default: object) -> float | None:
    """Return after how many seconds without rows a source counts as idle, or None if it never does."""
    value = default if sourcing.idle_timeout is None else sourcing.idle_timeout
    parsed: float | None = KEYS["idle_timeout"].parse(value)
    return parsed


def max_ahead_s(sourcing: SourceNode) -> float | None:
    """Return by how many seconds a source may be ahead of other sources, or None without a valid limit."""
    try:
        if sourcing.max_ahead is not None:
            seconds = seconds_in(sourcing.max_ahead)
        else:
            seconds = -1.0
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def sources_to_pause(
    sources: Mapping[str, SourceNode], reached: Mapping[str, datetime], with_input: Collection[str]
) -> dict[str, str]:
    """Return the sources that must not be read now, each with the slowest source, for which it waits.

    reached: the known watermarks. with_input: the sources that have new input. One of these is always read, so no
    source waits forever.
    """
    watermarks = [(reached[name], name) for name in with_input if name in reached]
    if not watermarks:
        return {}
    lowest, slowest = min(watermarks)
    waiting = {}
    for name in with_input:
        seconds = max_ahead_s(sources[name])
        if seconds is not None and name in reached and (reached[name] - lowest).total_seconds() > seconds:
            waiting[name] = slowest
    return waiting


def event_time_problems(sources: Sequence[SourceNode], ordered: Sequence[Node]) -> list[str]:
    """List everything that is wrong with the declarations."""
    problems = []
    for s in sources:
        for problem in _source_problems(s):
            problems.append(problem)
    by_name = {s.name: s for s in sources}
    by_stream, column_makers = event_time_origins(by_name, ordered), _column_makers(ordered)
    old_times = _old_times(by_name, by_stream, ordered)
    for stage in ordered:
        spec = spec_of(stage)
        if spec is None or not isinstance(stage, OperatorNode) or not spec.uses_event_time:
            continue
        subject = stage.title
        columns = []
        for name in stage.inputs:
            columns.append(sorted({str(by_name[source].event_time) for source in by_stream.get(name, {})}))
        for problem in spec.event_time_problems(columns):
            problems.append(f"{subject}: {problem}")
        for problem in _lost_times(stage, spec, columns, ordered):
            problems.append(f"{subject}: {problem}")
        for name, input, declared in zip(stage.inputs, spec.timed_inputs, columns, strict=False):
            if input.column is not None or len(declared) != 1:
                column = input.column
            else:
                column = declared[0]
            if isinstance(column, str) and stage.keeps_state:
                makers = column_makers.get(name, ())
                for maker in makers:
                    if column in maker.untimely:
                        problems.append(f"{subject}: {maker.untimely[column]}")
                if column in old_times.get(name, ()):
                    problems.append(f"{subject}: {_of_any_age(column)}")
    return problems


def _of_any_age(column: str) -> str:
    return (
        f"event_time={column!r} is a time of rows that a join, or every(…), keeps and may emit at any age: they would "
        "be late, and dropped; after a join, compute the later one of both sides' times in a stage, as in "
        f'greatest({column}, …), and use that as event_time="…", or give the join bounds, within="…"; move every(…) '
        "after this"
    )


def _old_times(
    sources: Mapping[str, SourceNode], by_stream: Mapping[str, Origins], ordered: Sequence[Node]
) -> dict[str, set[str]]:
    """Return, by stream, the columns of event time in which its rows may be of any age."""
    old: dict[str, set[str]] = {}
    for stage in ordered:
        spec = spec_of(stage)
        columns: set[str] = set()
        if spec is None or spec.output.columns is None:
            for name in row_inputs(stage):
                columns |= old.get(name, set())
        if spec is not None and spec.output.inputs_of_any_age:
            timely: set[str] = set()
            for index, name in enumerate(stage.inputs):
                times = _times_of(spec, index, sources, by_stream.get(name, {}))
                if index in spec.output.inputs_of_any_age:
                    columns |= times
                else:
                    timely |= times
            columns -= timely
        old |= dict.fromkeys(stage.produces, columns)
    return old


def _times_of(spec: OperatorSpec, index: int, sources: Mapping[str, SourceNode], into: Origins) -> set[str]:
    """Return the columns of event time of an operator's input: the one that it names, or those of the sources."""
    input = spec.timed_input(index)
    if input is not None and input.column is not None:
        return {input.column}
    return {str(sources[name].event_time) for name in into}


def _column_makers(ordered: Sequence[Node]) -> dict[str, list[OutputSpec]]:
    """Return, by stream, the outputs of operators whose columns its rows may still have."""
    by_stream: dict[str, list[OutputSpec]] = {}
    for stage in ordered:
        spec = spec_of(stage)
        makers = []
        for name in stage.inputs:
            for upstream in by_stream.get(name, ()):
                makers.append(upstream)
        if spec is not None:
            if spec.output.columns is not None:
                makers = [spec.output]
            else:
                makers = [*makers, spec.output]
        by_stream |= dict.fromkeys(stage.produces, makers)
    return by_stream


def _lost_times(
    stage: Node, spec: OperatorSpec, columns: Sequence[Sequence[str]], ordered: Sequence[Node]
) -> Iterator[str]:
    """Report time columns that an operator upstream drops, because its output has other columns than its input."""
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
        problems.append(f'{subject} has an idle_timeout, but no event time: name the column, as in event_time="at"')
    if node.max_ahead is not None and (node.event_time is None or max_ahead_s(node) is None):
        problems.append(
            f'{subject} has max_ahead={node.max_ahead!r}: expected a duration such as "1 hour", and event_time=…, the '
            "column that tells how far it is"
        )
    if node.says_how_to_wait and node.source.schema_policy.on_new_column != "hold":
        problems.append(f"{subject}: hold_for and unanswered are for on_new_column='hold'")
    if not isinstance(node.bounded, bool):
        problems.append(f"{subject} has bounded={node.bounded!r}: expected True or False")
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
