"""Which columns of its inputs each column of a stage is made of, for stages that are functions of DataFrames.

Such a function is called once more, on frames whose rows cannot be computed, and Spark's plan of what it returns is
read (spark/plans/column_origins.py). That takes a few round trips, so it is done by the first checkpoint of some code,
and again when an input has other columns; later acks take it from the one before. A function that takes long does more
than declare, and is not called again. Nothing but lineage depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.errors import TidegateError, Unavailable
from tidegate.execution.job.stages import call_stage, results_of
from tidegate.pipeline.graph.fingerprint import logic_of
from tidegate.pipeline.graph.graph import Graph, Job, StageNode
from tidegate.pipeline.selection import expression_of, sql_of
from tidegate.pipeline.union import union
from tidegate.records.codec import fingerprint
from tidegate.records.records import Json, TracedColumns
from tidegate.spark.plans.column_origins import find_column_origins, make_probes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["MAX_CALL_S", "columns_of_inputs", "is_still_true", "traced_code", "traced_functions", "traced_stages"]

log = logging.getLogger(__name__)

MAX_CALL_S = 5.0
"""How long a function may take if it is to be called once more."""


def traced_functions(job: Job) -> list[StageNode]:
    """Return the stages whose declaration does not tell what their columns are made of."""
    functions = [stage for stage in job.stages if isinstance(stage, StageNode) and stage.function is not union]
    return [each for each in functions if sql_of(each.function) is None and expression_of(each.function) is None]


def traced_code(graph: Graph, stages: Sequence[StageNode]) -> str:
    """Return a fingerprint of the pipeline's code, with all that these functions use: helpers and constants, too."""
    return fingerprint([graph.code_fingerprint(), *(logic_of(stage.function) for stage in stages)])


def columns_of_inputs(stages: Sequence[StageNode], streams: Mapping[str, DataFrame]) -> dict[str, str]:
    """Return a short hash of the columns of each stream that these stages read."""
    names = {name for stage in stages for name in stage.inputs}
    return {name: fingerprint(streams[name].columns) for name in sorted(names & streams.keys())}


def is_still_true(before: TracedColumns, code: str, inputs: Mapping[str, str]) -> bool:
    """Return whether the code and the columns of the inputs are those of an earlier ack."""
    return before.code == code and before.inputs == inputs


def traced_stages(stages: Sequence[StageNode], streams: Mapping[str, DataFrame]) -> dict[str, Json]:
    """Return by stage and stream what each column is made of: null if that is unknown. Raise Unavailable if Spark does
    not answer."""
    origins: dict[str, Json] = {}
    for stage in stages:
        try:
            origins[stage.name] = _traced(stage, [streams[name] for name in stage.inputs])
        except Unavailable:
            raise
        except TidegateError as error:  # it reads rows
            log.debug("The columns of stage %r cannot be traced: %s", stage.name, error.what)
        except Exception as error:
            log.debug("The columns of stage %r cannot be traced: %r", stage.name, error)
    return origins


def _traced(stage: StageNode, inputs: list[DataFrame]) -> Json:
    columns = [frame.columns for frame in inputs]
    streams: Json = {}
    for stream, result in results_of(stage, call_stage(stage, make_probes(inputs))).items():
        made_of: Json = {}
        for name, origins in find_column_origins(result, columns).items():
            made_of[name] = None
            if origins is not None:
                made_of[name] = [[stage.inputs[each.input], each.column, each.how] for each in sorted(origins)]
        if made_of:
            streams[stream] = made_of
    return streams
