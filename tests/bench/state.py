"""A running count per key, 100 k events a checkpoint: its cost must follow the batch, not the state.

Whole checkpoints, from trigger to published, with what changed appended to a Delta table. Rivals at 5 M keys, in the
same session on the same events: Structured Streaming (AvailableNow, RocksDB with changelog, changes to a Delta table),
and delta-spark's MERGE into a table of counts. `growth_…` is 20 M keys against 1 M, for keys all over the state and for
keys that lie together; `events_per_s_1m` is 1 M events in one checkpoint at 5 M keys. `…_cores`: processor time.
`driver_mb_20m` is the most memory that the driver (Python and JVM) ever had while it made a state of 20 M keys from as
many events, and continued with it; in a process of its own.
"""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.counting import (
    QUICK_KEYS,
    Counting,
    Merged,
    Streaming,
    counting,
    events,
    merging,
    spread,
    streaming,
    together,
)
from tests.bench.harness import Budget, Options, Pairs, Result, Turns, in_turn, median_of
from tests.bench.memory import memory
from tests.bench.spark import fingerprint, sessions
from tidegate.state import StateTable
from tidegate.state.table import view_sql

SMALL, LARGE, SMALL_TOGETHER, LARGE_TOGETHER, MANY, STREAMING, MERGE = range(1, 8)
"""The turns after our own at 5 M keys. Rivals come last: what they leave to be cleaned up is nobody's of ours."""


class Sides:
    """All that is measured, each on a state of its own."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.keys = {
            "small": options.size(1_000_000, QUICK_KEYS),
            "middle": options.size(5_000_000, QUICK_KEYS),
            "large": options.size(20_000_000, QUICK_KEYS),
        }
        self.count = options.size(100_000, 200)
        self.many_count = options.size(1_000_000, 2_000)
        self.warm = options.size(6, 0)
        self.middle = counting(options, "state-middle", self.keys["middle"])
        self.many = counting(options, "state-many", self.keys["middle"])
        self.small = counting(options, "state-small", self.keys["small"])
        self.large = counting(options, "state-large", self.keys["large"])
        self.small_together = counting(options, "state-small-together", self.keys["small"])
        self.large_together = counting(options, "state-large-together", self.keys["large"])
        self.streaming: Streaming = streaming(options, "state-streaming", self.keys["middle"])
        self.merged: Merged = merging(options, "state-merged", self.keys["middle"])
        self.made = options.folder("state-events")
        self.files: list[Path] = []

    def land(self, number: int) -> None:
        """What round `number` is about."""
        make, count, keys = partial(self.make, number), self.count, self.keys
        self.files = make("middle", spread(number, count, keys["middle"]), count)
        self.middle.land(number + 1, self.files)
        self.streaming.land(number + 1, self.files)
        self.land_many(self.warm + number)
        for name, world in (("small", self.small), ("large", self.large)):
            world.land(number + 1, make(name, spread(number, count, keys[name]), count))
        for name, world in (("small", self.small_together), ("large", self.large_together)):
            world.land(number + 1, make(f"{name}-together", together(number, count, keys[name]), count))

    def land_many(self, number: int) -> None:
        """A million events."""
        key = spread(number, self.many_count, self.keys["middle"])
        self.many.land(number + 1, self.make(number, "many", key, self.many_count))

    def warm_up(self) -> None:
        """A million events as often as Spark needs to have compiled what a pipeline runs all day."""
        for number in range(self.warm):
            self.land_many(number)
            self.many.take(number)

    def make(self, number: int, name: str, key: str, count: int) -> list[Path]:
        return events(self.options, number, key, count, self.made / f"{number:04d}-{name}")

    def take(self) -> tuple[Any, ...]:
        """In the order of the numbers above."""
        worlds = (self.small, self.large, self.small_together, self.large_together, self.many)
        ours = [world.take for world in worlds]
        return (self.middle.take, *ours, self.streaming.take, lambda number: self.merged.take(self.files))


def run(options: Options) -> Result:
    sides = Sides(options)
    sides.warm_up()
    turns = in_turn(*sides.take(), warmups=options.size(3, 0), pairs=options.pairs, before=sides.land)
    wrong = differs(sides)
    wall, cores = turns.wall(STREAMING), turns.core(STREAMING)
    many = statistics.median(turns.wall(MANY).rival)
    return Result(
        "state",
        ours_s=statistics.median(wall.ours),
        pairs=options.pairs,
        rival_s=statistics.median(wall.rival),
        ratio=wall.ratio,
        equal=not wrong,
        wrong="; ".join(wrong),
        keys={
            "spread": wall.spread(),
            "ratio_streaming_5m": wall.ratio,
            "ratio_streaming_5m_cores": cores.ratio,
            "ratio_merge_5m": turns.wall(MERGE).ratio,
            "ratio_merge_5m_cores": turns.core(MERGE).ratio,
            "growth_1m_20m": growth(turns, LARGE, SMALL, 0),
            "growth_1m_20m_cores": growth(turns, LARGE, SMALL, 1),
            "growth_clustered": growth(turns, LARGE_TOGETHER, SMALL_TOGETHER, 0),
            "growth_clustered_cores": growth(turns, LARGE_TOGETHER, SMALL_TOGETHER, 1),
            "events_per_s_1m": sides.many_count / many,
            "many_s": many,
            "many_cores_s": statistics.median(turns.core(MANY).rival),
            "bytes_per_changed_row": bytes_per_row(sides.middle),
            "parts": median_of(sides.middle.parts[-options.pairs :]),
            "parts_many": median_of(sides.many.parts[-options.pairs :]),
            "keys": list(sides.keys.values()),
            **memory(options),
        },
        budgets=(
            Budget("ratio_streaming_5m", 0.05),
            Budget("ratio_merge_5m", 1 / 6),
            Budget("growth_1m_20m", 2.0),
            Budget("growth_clustered", 1.2),
            Budget("many_s", options.size(1_000_000, 2_000) / 1e6),
            Budget("driver_mb_20m", 3 * 1024),
        ),
    )


def growth(turns: Turns, large: int, small: int, what: int) -> float:
    """How much more the large state costs than the small one: by the clock (0), or in processor time (1)."""
    return Pairs([r[large][what] for r in turns.rounds], [r[small][what] for r in turns.rounds]).ratio


def table_of(world: Counting, id: int) -> StateTable:
    """The state as of a checkpoint."""
    import msgspec

    ledger = world.control.ledger
    found = ledger.ack(id, "main")
    assert found is not None
    return msgspec.convert(ledger.unpack(found.ack.states["state.counts"]), StateTable)


def bytes_per_row(world: Counting) -> float:
    """Bytes that checkpoints wrote into the state, with what they merged, for each row that they changed."""
    ids = world.control.ledger.ids()
    size = rows = 0
    for before, id in itertools.pairwise(ids):
        known = {each.file.path for each in table_of(world, before).files}
        new = [each.file for each in table_of(world, id).files if each.file.path not in known]
        size += sum(file.size for file in new)
        rows += sum(each.file.rows for each in table_of(world, id).files if each.oldest == id)
    return size / max(rows, 1)


def differs(sides: Sides) -> list[str]:
    """The state is what MERGE has, and each change was told as Structured Streaming tells it."""
    spark: Any = sessions(sides.options.spark)()
    reader: Any = spark.read.format("delta")
    world = sides.middle
    ours = fingerprint(reader.load(f"{world.root}/changes"))
    theirs = fingerprint(reader.load(f"{sides.streaming.root}/changes"))
    table = table_of(world, world.control.ledger.view().last_id)
    source = f"delta.`{world.control.ledger.home}/state/counts`"
    state = fingerprint(spark.sql(view_sql(table, source)))
    merged = fingerprint(reader.load(f"{sides.merged.root}/table"))
    found = [] if ours == theirs else [f"ours changed {ours}, Structured Streaming {theirs}"]
    return found + ([] if state == merged else [f"our state is {state}, MERGE has {merged}"])
