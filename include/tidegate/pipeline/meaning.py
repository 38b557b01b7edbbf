"""What operators remember must still be what they mean by it: the state of a sum is none of a maximum.

Each operator says what its state means (`Operator.meaning`); the ack remembers it. It is compared when a checkpoint is
planned, before anything runs, and once more by the job, for the code may have changed in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.errors import Invalid
from tidegate.model.records import Json
from tidegate.pipeline.event_time import column_of, origins

if TYPE_CHECKING:
    from tidegate.pipeline.graph import Graph, Operated

__all__ = ["meaning_of", "refuse_other_meanings", "without_removed"]

_MEANING = ".meaning"


def meaning_of(graph: Graph) -> dict[str, Json]:
    """For an ack's memory: what the operators' states mean. No operator and no source has such a name."""
    return {f"{stage.name}{_MEANING}": _of(graph, stage) for stage in graph.operators}


def without_removed(graph: Graph, memory: Mapping[str, Json]) -> dict[str, Json]:
    """The memory without that of operators that were left behind: under its uid, another one would begin with it."""
    there = {stage.name for stage in graph.operators}
    gone = {name.removesuffix(_MEANING) for name in memory if name.endswith(_MEANING)} - there
    lost = {f"{uid}{what}" for uid in gone for what in ("", _MEANING, ".watermark")}
    return {name: told for name, told in memory.items() if name not in lost}


def _of(graph: Graph, stage: Operated) -> Json:
    told = stage.operator.meaning(not graph.updating.isdisjoint(stage.inputs))
    if (chosen := told.get("event_time")) is not None:
        found = origins(graph.sources, graph.stages)
        columns = (column_of(found[name], graph.sources) for name in stage.inputs)
        told["event_time"] = [own or column for own, column in zip(chosen, columns, strict=True)]
    plain: Json = msgspec.json.decode(msgspec.json.encode(told))
    return plain


def refuse_other_meanings(graph: Graph, memory: Mapping[str, Json], id: int) -> None:
    """Invalid if an operator would take what checkpoint `id` remembers for something else."""
    found = []
    for stage in graph.operators:
        was, now = memory.get(f"{stage.name}{_MEANING}", {}), _of(graph, stage)
        found += [
            f"{stage.operator.kind} {stage.name!r}: {what} is {_text(now[what])}, and was {_text(was[what])}"
            for what in was
            if what in now and now[what] != was[what]
        ]
    if found:
        raise Invalid(
            "\n    ".join([f"operators remember something else than they mean now, as of checkpoint {id}:", *found]),
            expected="declarations by which their state was made; results may be added under new names, or left out",
            help="change it back; or give a changed result another name, or the operator another uid: it starts afresh",
            reason="STATE_CHANGED",
        )


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return str(value)
