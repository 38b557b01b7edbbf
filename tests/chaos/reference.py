"""The pipeline that is put under chaos, what it is fed, and what must be in its tables, in plain Python.

A row is a function of its id, and file k a list of ids that depends on k alone. So the tables after k files are known,
whatever happened and however the files were cut into checkpoints, if it is known which rows somebody has released.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any

__all__ = ["DAG", "NAME", "PIPELINE", "RELEASED", "ROWS", "SUITE", "Fed", "file_ids", "put"]

NAME = "chaos"
ROWS = 20
KEYS = 7
RELEASED = 1_000_000
"""What rows that are released from quarantine have as v."""
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

PIPELINE = '''
"""Quarantine, deduplication, an aggregate and `process`, in two jobs. Made by tests/chaos."""

from tidegate import Pipeline
from tidegate.gates import Expectations
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

pipeline = Pipeline("chaos", interval="3 s", watermark="1 hour")
events = pipeline.source(
    "events",
    Files("landing/*.json", schema="id long, k long, v long, at timestamp", max_files=60),
    event_time="at",
)
checked = events.gate(Expectations("chaos", on_failure="quarantine", at_most=1.0), name="checked")
once = checked.deduplicate(by=["id"], within="1 day", uid="once")
totals = once.aggregate(by=["k"], total="sum(v)", n="count(*)", uid="totals")


@once.job("second").process(by="k", state="n long", output="k long, n long", uid="tens")
def tens(key, rows, state, timers):
    """Says so at every tenth row of a key."""
    before = state.n or 0
    state.n = before + rows.num_rows
    for n in range(before // 10 * 10 + 10, state.n + 1, 10):
        yield {"k": key["k"], "n": n}


once.sink("once", DeltaAppend("tables/once"))
totals.sink("totals", DeltaUpsert("tables/totals", keys=["k"]))
tens.sink("tens", DeltaAppend("tables/tens"))
'''

DAG = """
from jobs.chaos_pipeline import pipeline
from tidegate.dag import build_dag

dag = build_dag(pipeline)
"""

SUITE = """
name: chaos
expectations:
  - type: expect_column_values_to_be_between
    kwargs: {column: v, min_value: 0}
"""


@cache
def value(id: int) -> int:
    """Bad if negative."""
    return random.Random(f"v{id}").randrange(-10, 90)


def row(id: int) -> dict[str, Any]:
    return {"id": id, "k": id % KEYS, "v": value(id), "at": (BEGIN + timedelta(seconds=id)).isoformat()}


@cache
def file_ids(number: int) -> list[int]:
    """New ones, and some of this file and of the three before once more."""
    dice = random.Random(f"file{number}")
    new = list(range((number - 1) * ROWS, number * ROWS))
    return new + [dice.randrange(max((number - 4) * ROWS, 0), number * ROWS) for _ in range(dice.randrange(6))]


def put(folder: Path, number: int) -> None:
    """A file of input, whole or not at all."""
    aside = folder / f"{number:06d}.json.tmp"
    aside.write_text("".join(f"{json.dumps(row(id))}\n" for id in file_ids(number)))
    aside.rename(aside.with_suffix(""))


class Fed:
    """The tables as they must be after the first k files, with the rows of these ids released from quarantine."""

    def __init__(self, files: int, released: Iterable[int] = ()) -> None:
        self.files = files
        self.released = frozenset(released)
        self._seen: set[int] = set()
        self._bad: Counter[int] = Counter()
        for number in range(1, files + 1):
            for id in file_ids(number):
                if value(id) < 0:
                    self._bad[id] += 1
                else:
                    self._seen.add(id)

    @property
    def bad(self) -> set[int]:
        """The ids of rows that are quarantined."""
        return set(self._bad)

    @cached_property
    def _values(self) -> dict[int, int]:
        return {id: value(id) for id in self._seen} | dict.fromkeys(self.released, RELEASED)

    @cached_property
    def once(self) -> Counter[Any]:
        return Counter((id, id % KEYS, v) for id, v in self._values.items())

    @cached_property
    def totals(self) -> Counter[Any]:
        n, total = Counter(id % KEYS for id in self._values), Counter[int]()
        for id, v in self._values.items():
            total[id % KEYS] += v
        return Counter((k, total[k], n[k]) for k in n)

    @cached_property
    def tens(self) -> Counter[Any]:
        n = Counter(id % KEYS for id in self._values)
        return Counter((k, tenth) for k, count in n.items() for tenth in range(10, count + 1, 10))

    @cached_property
    def aside(self) -> Counter[Any]:
        return Counter({(id, value(id)): count for id, count in self._bad.items()})

    def table(self, name: str) -> Counter[Any]:
        """By the name of the sink."""
        return getattr(self, {"quarantine.checked": "aside"}.get(name, name))
