"""Call the functions of stages: DataFrames in, DataFrames out, and what is wrong with what they give."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.pipeline.graph.graph import Graph, StageNode
from tidegate.pipeline.graph.updates import withdrawn_name
from tidegate.spark.errors import translate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["stage_results"]


def stage_results(stage: StageNode, streams: Mapping[str, DataFrame], graph: Graph) -> dict[str, DataFrame]:
    """A stage's results. Behind streams that replace rows, also for the rows that are replaced: beside these there is
    nothing new in its other inputs."""
    results = _results(stage, _call(stage, [streams[name] for name in stage.inputs]))
    if graph.updating.isdisjoint(stage.inputs):
        return results
    replaced = [streams.get(withdrawn_name(name), streams[name].where("false")) for name in stage.inputs]
    withdrawn = _results(stage, _call(stage, replaced))
    return results | {withdrawn_name(name): frame for name, frame in withdrawn.items()}


def _call(stage: StageNode, frames: Sequence[DataFrame]) -> object:
    """The stage's function on its inputs. Whatever it raises is told with the stage's name and the user's line."""
    try:
        return stage.function(*frames)
    except TidegateError:
        raise
    except Exception as error:
        told = translate(error)
        if isinstance(told, Unavailable):
            raise told from error
        frames_up = traceback.extract_tb(error.__traceback__)
        line = frames_up[min(1, len(frames_up) - 1)]  # 0 is this function, 1 the stage's own
        raise Invalid(
            f"stage {stage.name!r} failed: {told.what if told else f'{type(error).__name__}: {error}'}",
            help=f"correct the stage; it failed in {line.filename}, line {line.lineno}: {line.line}",
            reason="STAGE_FAILED",
        ) from error


def _results(stage: StageNode, returned: object) -> dict[str, DataFrame]:
    """A stage's return value under the names that it produces; Invalid says what was returned instead."""
    from pyspark.sql import DataFrame

    if isinstance(returned, Mapping):
        given = {f"{stage.name}.{name}": frame for name, frame in returned.items()}
    elif isinstance(returned, tuple | list) and stage.outputs:
        given = dict(zip(stage.produces, returned, strict=False)) if len(returned) == len(stage.outputs) else {}
    else:
        given = {stage.name: returned}
    wrong = [name for name in stage.produces if not isinstance(given.get(name), DataFrame)]
    if wrong or len(given) != len(stage.produces):
        raise Invalid(
            f"stage {stage.name!r} returned {_shape(returned)}",
            expected=f"a DataFrame for each of {', '.join(stage.produces)}",
            help="return DataFrames: a single one, or a dict or tuple with one per declared output",
            reason="BAD_STAGE_RESULT",
        )
    return given


def _shape(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(f'{key}: {type(v).__name__}' for key, v in value.items()) or 'nothing in it'}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(type(v).__name__ for v in value) or 'nothing'}"
    return "None (is a `return` missing?)" if value is None else f"a {type(value).__name__}"
