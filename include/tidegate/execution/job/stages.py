"""Calls the user's stages, which are functions of DataFrames, and names what they return."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tidegate.errors import Invalid, TidegateError, Unavailable, name_of, quoted_text
from tidegate.pipeline.graph.graph import Graph, Node, OperatorNode, StageNode
from tidegate.pipeline.graph.late_sensitive import streams_after
from tidegate.pipeline.graph.nodes import replaced_rows_of
from tidegate.pipeline.selection import sql_of
from tidegate.spark.errors import code_of_error, translate
from tidegate.spark.frame_facts import is_known_empty, mark_empty_by_plan, with_callers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["call_stage", "declared_at", "naming_stages", "results_of", "rows_after_gate", "stage_results"]


def declared_at(function: Callable[..., object]) -> str:
    """Return the file and line of a stage's function. Empty: Python does not know them."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code is not None else ""


@contextlib.contextmanager
def naming_stages(stages: Sequence[Node]) -> Iterator[None]:
    """Name the stage, operator or gate that an expression is from, if it fails in Spark while rows are computed.

    Spark computes all of them at once, so its error says which expression failed, and not whose it is.
    """
    try:
        yield
    except Exception as error:
        meaning = translate(error)
        if meaning is error or not isinstance(meaning, Invalid):
            raise
        whose = _stages_of_expression(stages, error)
        if not whose:
            raise
        raise Invalid(
            f"{' or '.join(whose)}: {meaning.what}",
            expected=meaning.expected,
            help=meaning.help,
            reason=meaning.reason,
            quoted=meaning.quoted,
        ) from error


def _stages_of_expression(stages: Sequence[Node], error: BaseException) -> list[str]:
    """Return the stages that a failing expression may be from. Empty: nobody knows."""
    lines, parts = code_of_error(error)
    found = []
    for stage in stages:
        if isinstance(stage, StageNode):
            file, first, text = _source_of(stage.function)
            is_inside = any(file == at and first <= line < first + text.count("\n") for at, line in lines)
            if is_inside or any(part in text for part in parts):
                place = declared_at(stage.function) if sql_of(stage.function) is None else ""
                found.append(f"stage {stage.name!r}" + (f" ({place})" if place else ""))
        elif isinstance(stage, OperatorNode) and any(part in repr(stage.operator.describe()) for part in parts):
            found.append(f"operator {stage.name!r}")
    return found


def _source_of(function: Callable[..., object]) -> tuple[str, int, str]:
    """Return the file of a stage's function, its first line and its text; for a selection its SQL."""
    if (sql := sql_of(function)) is not None:
        return "", 0, sql
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    try:
        text, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return "", 0, ""
    return function.__code__.co_filename, first, "".join(text)


def stage_results(stage: StageNode, streams: Mapping[str, DataFrame], graph: Graph) -> dict[str, DataFrame]:
    """Return a stage's results. If inputs replace rows, the stage also runs on the replaced rows, with its other inputs
    empty."""
    inputs = [streams[name] for name in stage.inputs]
    results = results_of(stage, call_stage(stage, inputs))
    if all(map(is_known_empty, inputs)):
        results = {name: mark_empty_by_plan(frame) for name, frame in results.items()}
    if graph.updating.isdisjoint(stage.inputs):
        return results
    replaced = [streams.get(replaced_rows_of(name), streams[name].where("false")) for name in stage.inputs]
    withdrawn = results_of(stage, call_stage(stage, replaced))
    return results | {replaced_rows_of(name): frame for name, frame in withdrawn.items()}


def call_stage(stage: StageNode, frames: Sequence[DataFrame]) -> object:
    """Call the stage's function on its inputs. An exception is reported with the stage's name and the user's line."""
    try:
        with with_callers():
            return stage.function(*frames)
    except TidegateError:
        raise
    except Exception as error:
        translated = translate(error)
        if isinstance(translated, Unavailable):
            raise translated from error
        frames_up = traceback.extract_tb(error.__traceback__)
        line = frames_up[min(1, len(frames_up) - 1)]  # 0 is this function, 1 the stage's own
        help = f"correct the stage; it failed in {line.filename}, line {line.lineno}: {line.line}"
        if (sql := sql_of(stage.function)) is not None:
            help = f"correct its SQL, which computes columns row by row: {sql}"
        raise Invalid(
            f"stage {stage.name!r} failed: {name_of(translated or error)}",
            help=help,
            reason="STAGE_FAILED",
            quoted=quoted_text(translated or error),
        ) from error


def results_of(stage: StageNode, returned: object) -> dict[str, DataFrame]:
    """Return a stage's results under the names that it produces. Raise Invalid if something else was returned."""
    from pyspark.sql import DataFrame

    if isinstance(returned, Mapping):
        streams = {f"{stage.name}.{name}": frame for name, frame in returned.items()}
    elif isinstance(returned, tuple | list) and stage.outputs:
        streams = dict(zip(stage.produces, returned, strict=False)) if len(returned) == len(stage.outputs) else {}
    else:
        streams = {stage.name: returned}
    wrong = [name for name in stage.produces if not isinstance(streams.get(name), DataFrame)]
    if wrong or len(streams) != len(stage.produces):
        raise Invalid(
            f"stage {stage.name!r} returned {_shape(returned)}",
            expected=f"a DataFrame for each of {', '.join(stage.produces)}",
            help="return DataFrames: a single one, or a dict or tuple with one per declared output",
            reason="BAD_STAGE_RESULT",
        )
    return streams


def rows_after_gate(graph: Graph, gate: str, stream: str, rows: DataFrame) -> DataFrame | None:
    """Return what comes of rows that pass a gate in a stream behind it, by what the stages on the way make of them
    alone. None: that cannot be told, since other rows meet them there."""
    ways = streams_after(graph, gate)
    makers = {name: node for node in graph.stages for name in node.produces}

    def made(name: str) -> DataFrame | None:
        if name == gate:
            return rows
        maker = makers[name]
        if not isinstance(maker, StageNode):  # it passes rows on as they are
            inputs = [each for each in maker.inputs if each in ways]
            return made(inputs[0]) if len(inputs) == 1 else None
        if not ways.keys() >= {*maker.inputs}:
            return None
        frames = [frame for frame in map(made, maker.inputs) if frame is not None]
        return results_of(maker, call_stage(maker, frames))[name] if len(frames) == len(maker.inputs) else None

    return made(stream)


def _shape(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(f'{key}: {type(v).__name__}' for key, v in value.items()) or 'nothing in it'}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(type(v).__name__ for v in value) or 'nothing'}"
    return "None (is a `return` missing?)" if value is None else f"a {type(value).__name__}"
