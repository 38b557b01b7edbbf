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
from tidegate.pipeline.graph.nodes import makers_of, replaced_rows_of
from tidegate.pipeline.selection import sql_of
from tidegate.spark.errors import code_of_error, translate
from tidegate.spark.frame_facts import is_known_empty, mark_if_plan_is_empty, with_callers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["call_stage", "declaration_place", "naming_stages", "results_of", "rows_after_gate", "stage_results"]


def declaration_place(function: Callable[..., object]) -> str:
    """Return the file and line of a stage's function, or "" if Python does not know them."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    return f"{code.co_filename}, line {code.co_firstlineno}"


@contextlib.contextmanager
def naming_stages(stages: Sequence[Node]) -> Iterator[None]:
    """Add the stage or operator of a failing expression to Spark's error.

    Spark computes all stages in one query, so its error names the expression, but not the stage.
    """
    try:
        yield
    except Exception as error:
        meaning = translate(error)
        if meaning is error or not isinstance(meaning, Invalid):
            raise
        candidates = _stages_of_expression(stages, error)
        if not candidates:
            raise
        raise Invalid(
            f"{' or '.join(candidates)}: {meaning.what}",
            expected=meaning.expected,
            help=meaning.help,
            reason=meaning.reason,
            quoted=meaning.quoted,
        ) from error


def _stages_of_expression(stages: Sequence[Node], error: BaseException) -> list[str]:
    """Return the stages and operators that a failing expression may be from."""
    lines, fragments = code_of_error(error)
    candidates = []
    for stage in stages:
        if isinstance(stage, StageNode):
            file, first, text = _source_of(stage.function)
            end = first + text.count("\n")
            is_inside = any(path == file and first <= line < end for path, line in lines)
            if is_inside or any(fragment in text for fragment in fragments):
                if sql_of(stage.function) is None:
                    place = declaration_place(stage.function)
                else:
                    place = ""
                candidates.append(f"stage {stage.name!r}" + (f" ({place})" if place else ""))
        elif isinstance(stage, OperatorNode):
            declaration = repr(stage.operator.describe())
            if any(fragment in declaration for fragment in fragments):
                candidates.append(f"operator {stage.name!r}")
    return candidates


def _source_of(function: Callable[..., object]) -> tuple[str, int, str]:
    """Return the file, the first line and the text of a stage's function. A selection has only a text, its SQL."""
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
    """Return a stage's results. It runs on retracted rows, too, with other inputs empty: results are retractions."""
    inputs = [streams[name] for name in stage.inputs]
    results = results_of(stage, call_stage(stage, inputs))
    if all(map(is_known_empty, inputs)):
        results = {name: mark_if_plan_is_empty(frame) for name, frame in results.items()}
    if graph.updating.isdisjoint(stage.inputs):
        return results
    retracted = []
    for name in stage.inputs:
        retracted.append(streams.get(replaced_rows_of(name), streams[name].where("false")))
    for name, frame in results_of(stage, call_stage(stage, retracted)).items():
        results[replaced_rows_of(name)] = frame
    return results


def call_stage(stage: StageNode, frames: Sequence[DataFrame]) -> object:
    """Call the stage's function on its inputs. Its exceptions become Invalid, with the stage's name and the line."""
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
    """Return a stage's results by stream. Raise Invalid unless it returned a DataFrame for each of its outputs."""
    from pyspark.sql import DataFrame

    if isinstance(returned, Mapping):
        streams = {f"{stage.name}.{name}": frame for name, frame in returned.items()}
    elif isinstance(returned, tuple | list) and stage.outputs:
        if len(returned) == len(stage.outputs):
            streams = dict(zip(stage.produces, returned, strict=False))
        else:
            streams = {}
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
    """Run the stages between a gate and a downstream stream on rows that pass the gate.

    Return None if the result also depends on other rows.
    """
    downstream = streams_after(graph, gate)
    makers = makers_of(graph.stages)

    def compute(name: str) -> DataFrame | None:
        if name == gate:
            return rows
        maker = makers[name]
        if not isinstance(maker, StageNode):  # a gate, or an operator that emits rows unchanged
            inputs = [input for input in maker.inputs if input in downstream]
            return compute(inputs[0]) if len(inputs) == 1 else None
        if not downstream.keys() >= {*maker.inputs}:
            return None
        frames: list[DataFrame] = []
        for input in maker.inputs:
            frame = compute(input)
            if frame is None:
                return None
            frames.append(frame)
        return results_of(maker, call_stage(maker, frames))[name]

    return compute(stream)


def _shape(value: object) -> str:
    if isinstance(value, Mapping):
        entries = ", ".join(f"{key}: {type(entry).__name__}" for key, entry in value.items())
        return f"a dict with {entries or 'nothing in it'}"
    if isinstance(value, tuple | list):
        items = ", ".join(type(item).__name__ for item in value)
        return f"a {type(value).__name__} of {items or 'nothing'}"
    if value is None:
        return "None (is a `return` missing?)"
    return f"a {type(value).__name__}"
