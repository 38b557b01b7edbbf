"""Back to an older checkpoint of a large state: its record is read, the state opened, its table put back by one commit.

Against Structured Streaming, which has no way back, starting from its checkpoint folder as it does after a crash: up to
the end of a batch with one event, for without any it does not load its state. No event is counted on our side: what a
checkpoint costs then is told by the bench `state`.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from tests.bench.counting import QUICK_KEYS, Counting, Streaming, counting, events, spread, streaming
from tests.bench.harness import Budget, Options, Pairs, Result, in_turn
from tests.bench.spark import sessions
from tests.bench.state import table_of
from tidegate.connectors.sink import Publication
from tidegate.state import StateSink
from tidegate.state.keyed import KeyedState, StateFolder

RIVAL, SMALL, LARGE = 1, 2, 3


class Restoring:
    """A state with some checkpoints, put back again and again: each time to another one."""

    def __init__(self, options: Options, name: str, keys: int, count: int) -> None:
        self.world: Counting = counting(options, f"restore-{name}", keys)
        self.options = options
        self.checkpoints = options.size(3, 2)
        made = options.folder(f"restore-events-{name}")
        for number in range(1, self.checkpoints + 1):
            self.world.land(number, events(options, number, spread(number, count, keys), count, made / str(number)))
            self.world.checkpoint()
        self.wrong: list[str] = []
        self.published = self.world.control.ledger.view().last_id

    def take(self, number: int) -> None:
        """Back (or forth) to a checkpoint, as far as its state is concerned."""
        target = 1 + number % self.checkpoints
        table = table_of(self.world, target)
        control, sink = self.world.control, StateSink("counts", "")
        context = control.context("state.counts")
        to = StateFolder(sink.location(context), "restored", target + 1)
        KeyedState(sessions(self.options.spark)(), "counts", table, to, table.keys, table.groups)
        head = sink.head(context)
        self.published += 1
        record = msgspec.to_builtins(table)
        done = sink.publish(Publication(self.published, 0, "restore", head.last_entry, (record,)), head, context)
        assert done is not None
        assert done.rows == sum(each.file.rows for each in table.files)


def run(options: Options) -> Result:
    count = options.size(100_000, 200)
    sizes = {"small": options.size(1_000_000, QUICK_KEYS), "middle": options.size(5_000_000, QUICK_KEYS)}
    sizes["large"] = options.size(20_000_000, QUICK_KEYS)
    middle, small, large = (Restoring(options, name, sizes[name], count) for name in ("middle", "small", "large"))
    rival: Streaming = streaming(options, "restore-streaming", sizes["middle"])
    one: Path = options.folder("restore-one")

    def land(number: int) -> None:
        rival.land(number + 1, events(options, number, f"{number} AS k", 1, one / str(number)))

    turns = in_turn(
        middle.take, rival.take, small.take, large.take, warmups=options.size(2, 0), pairs=options.pairs, before=land
    )
    walls = turns.wall(RIVAL)
    of_large, of_small = turns.wall(LARGE).rival, turns.wall(SMALL).rival
    return Result(
        "restore",
        ours_s=statistics.median(walls.ours),
        pairs=options.pairs,
        rival_s=statistics.median(walls.rival),
        ratio=walls.ratio,
        keys={
            "spread": walls.spread(),
            "growth_1m_20m": Pairs(of_large, of_small).ratio,
            "large_s": statistics.median(of_large),
            "keys": list(sizes.values()),
        },
        budgets=(Budget("ratio", 0.02), Budget("ours_s", 0.1), Budget("large_s", 0.1), Budget("growth_1m_20m", 1.5)),
    )
