"""How far event time is, over any checkpoints: sources with rows or without, idle, ended, or waiting for others.

Against a model that looks at all of the history each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate import Pipeline
from tidegate.execution.job.watermarks import EventTimes
from tidegate.pipeline import Graph
from tidegate.pipeline.graph.graph import OperatorNode
from tidegate.records.moments import END_OF_TIME, micros_of
from tidegate.sinks import DeltaAppend
from tidegate.sources import Files

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
DELAYS = {"a": 0, "b": 3}
READS = {"pairs": ("a", "b"), "first": ("a",)}
"""By operator, the sources whose rows it takes."""


@dataclass(frozen=True)
class Arrived:
    """What a checkpoint has of a source."""

    newest: int | None = None
    """The minute of its newest row. None: it has none."""
    does_not_move: bool = False
    """It has input, and waits for others."""
    ended: bool = False


ROWS = st.builds(Arrived, newest=st.integers(0, 60))
NOTHING = st.builds(Arrived, does_not_move=st.booleans())
CHECKPOINTS = st.lists(st.tuples(st.integers(0, 20), *[st.one_of(ROWS, ROWS, NOTHING, NOTHING)] * 2), max_size=12)
TIMEOUTS = st.sampled_from(["never", "1 min", "10 min", "1 hour"])


def declared(idle: Mapping[str, str]) -> Graph:
    pipeline = Pipeline("p")
    a, b = (
        pipeline.source(
            name,
            Files(f"{name}/*.json", schema=f"k long, {name}_at timestamp"),
            event_time=f"{name}_at",
            watermark=f"{DELAYS[name]} min",
            idle_timeout=idle[name],
            bounded=True,
        )
        for name in DELAYS
    )
    a.join(b, on="k", within="1 h", uid="pairs").sink("pairs", DeltaAppend("pairs"))
    a.deduplicate(by="k", within="1 h", uid="first").sink("first", DeltaAppend("first"))
    return pipeline.graph()


def planned(clock: datetime, arrived: Mapping[str, Arrived]) -> Any:
    ranges = {
        name: SimpleNamespace(empty=each.newest is None, does_not_move=each.does_not_move, is_exhausted=each.ended)
        for name, each in arrived.items()
    }
    return SimpleNamespace(
        time=clock.isoformat(), sources=ranges, by_interval=False, interval=None, drain=None, config={}
    )


def is_idle(name: str, idle: Mapping[str, str], history: Sequence[tuple[datetime, Mapping[str, Arrived]]]) -> bool:
    minutes = {"never": None, "1 min": 1, "10 min": 10, "1 hour": 60}[idle[name]]
    now, arrived = history[-1]
    heard = [at for at, each in history if each[name].newest is not None or each[name].does_not_move]
    silent = now - (heard[-1] if heard else history[0][0])
    return arrived[name].ended or (minutes is not None and silent >= minutes * MINUTE)


def reached(
    sources: Sequence[str], idle: Mapping[str, str], history: Sequence[tuple[datetime, Mapping[str, Arrived]]]
) -> datetime | None:
    """How far the rows of these sources are complete, by one checkpoint."""
    if all(history[-1][1][name].ended for name in sources):
        return END_OF_TIME
    marks = {}
    for name in sources:
        newest = [each[name].newest for _, each in history if each[name].newest is not None]
        marks[name] = BEGIN + (max(newest) - DELAYS[name]) * MINUTE if newest else None
    waited_for = [name for name in sources if not is_idle(name, idle, history)]
    known = [mark for name in waited_for or sources if (mark := marks[name]) is not None]
    if waited_for:
        return min(known) if len(known) == len(waited_for) else None
    return max(known, default=None)


@settings(max_examples=400, deadline=None)
@given(CHECKPOINTS, st.fixed_dictionaries(dict.fromkeys(DELAYS, TIMEOUTS)), st.integers(0, 14), st.integers(0, 14))
def test_event_time_is_that_of_the_slowest_source_that_is_waited_for_and_never_goes_back(
    checkpoints: list[tuple[int, Arrived, Arrived]], idle: dict[str, str], a_ends: int, b_ends: int
) -> None:
    graph = declared(idle)
    stages = [stage for stage in graph.stages if isinstance(stage, OperatorNode)]
    assert {stage.name for stage in stages} == READS.keys()
    memory: dict[str, Any] = {}
    before: dict[str, datetime] = {}
    history: list[tuple[datetime, Mapping[str, Arrived]]] = []
    clock = BEGIN + timedelta(days=1)
    for number, (minutes, *each) in enumerate(checkpoints):
        clock += minutes * MINUTE
        ended = {"a": number >= a_ends, "b": number >= b_ends}
        came = dict(zip(DELAYS, each, strict=True))
        arrived = {name: Arrived(ended=True) if ended[name] else came[name] for name in DELAYS}
        history.append((clock, arrived))
        newest = {name: arrived[name].newest for name in DELAYS}
        highest = {name: micros_of(BEGIN + at * MINUTE) for name, at in newest.items() if at is not None}
        times = EventTimes(graph, planned(clock, arrived), memory, highest.get)
        for stage in stages:
            marks = times.for_operator(stage)
            wanted = reached(READS[stage.name], idle, history)
            last = before.get(stage.name)
            assert marks.before == times.base_watermark(stage.name) == last
            if last is not None and (wanted is None or wanted < last):
                wanted = last
            assert marks.now == wanted, f"{stage.name} at {clock}"
            if marks.now is not None:
                before[stage.name] = marks.now
        assert times.idle() == [name for name in DELAYS if is_idle(name, idle, history)]
        memory |= times.memory()
