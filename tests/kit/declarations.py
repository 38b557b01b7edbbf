"""Short declarations, and the problems that they have."""

from __future__ import annotations

import pytest

from tests.kit.toys import ToyFeed, ToySink, ToySource, ToyTables
from tidegate.connectors.sink import AtLeastOnceSink
from tidegate.errors import Invalid
from tidegate.pipeline import Pipeline
from tidegate.records.place import Place

TABLES = ToyTables()


def source() -> ToySource:
    return ToySource(ToyFeed())


def sink(name: str = "t") -> ToySink:
    return ToySink(name, TABLES)


class Repeating(AtLeastOnceSink, ToySink):
    """Cannot promise exactly once."""


def problems(pipeline: Pipeline, place: Place | None = None) -> list[str]:
    with pytest.raises(Invalid) as caught:
        pipeline.graph(place)
    assert caught.value.reason == "BAD_PIPELINE"
    assert "nothing has been read or written" in caught.value.help
    head, *listed = caught.value.what.split("\n")
    assert head == f"pipeline {pipeline.name!r} has {len(listed)} problem{'s' if len(listed) > 1 else ''}:"
    assert [line.split(".")[0].strip() for line in listed] == [str(n) for n in range(1, len(listed) + 1)]
    return [line.split(". ", 1)[1] for line in listed]


def one_problem(pipeline: Pipeline, place: Place | None = None) -> str:
    found = problems(pipeline, place)
    assert len(found) == 1, found
    return found[0]
