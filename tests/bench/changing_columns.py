"""JSON files that fit their schema, read with a policy for what does not fit, against the same without a policy.

Both are tidegate's own, side by side, whole checkpoints from plan to published. Files in which some records do not fit
are read by a slower way: what that costs is a figure without a budget.
"""

from __future__ import annotations

import json
import random
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.harness import Budget, Options, Result, Turns, in_turn
from tests.bench.spark import fingerprint
from tests.bench.worlds import BenchedPipeline
from tidegate.sinks import DeltaAppend

SCHEMA = "id long, customer long, country string, amount decimal(12,2), at timestamp, note string"
FILES = 4
POLICIES: dict[str, Any] = {"on_new_column": "rescue", "on_type": "rescue"}


def run(options: Options) -> Result:
    rows = options.size(1_000_000, 2_000)
    clean = sorted(options.cached("json-clean", partial(make_input, rows=rows, odd=0)).glob("*.json"))
    odd = sorted(options.cached("json-odd", partial(make_input, rows=rows, odd=100)).glob("*.json"))
    keys = compare(options, "keys", clean, {"on_new_column": "evolve"})
    types = compare(options, "types", clean, POLICIES)
    drifting = compare(options, "drifting", odd, {"on_new_column": "rescue"})
    wrong = [what for what, _ in (keys, types, drifting) if what]
    return Result(
        "changing_columns",
        ours_s=statistics.median(types[1].wall().ours),
        pairs=options.pairs,
        rival_s=statistics.median(types[1].wall().rival),
        ratio=types[1].wall().ratio,
        equal=not wrong,
        wrong="; ".join(wrong),
        keys={
            "ratio_keys": keys[1].wall().ratio,
            "ratio_drifting": drifting[1].wall().ratio,
            "spread": types[1].wall().spread(),
            "rows": rows,
        },
        budgets=(Budget("ratio", 1.05), Budget("ratio_keys", 1.05)),
    )


def make_input(folder: Path, *, rows: int, odd: int) -> None:
    """Files of orders. Every record whose number is a multiple of `odd` has a key of its own."""
    chosen = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FILES):
        with (folder / f"{number}.json").open("w") as out:
            for id in range(number, rows, FILES):
                order: dict[str, Any] = {
                    "id": id,
                    "customer": chosen.randrange(50_000),
                    "country": chosen.choice(["AT", "DE", "FR"]),
                    "amount": chosen.randrange(100_000) / 100,
                    "at": f"2026-11-30T10:{id % 60:02d}:00Z",
                    "note": f"order {id} of {chosen.randrange(1000)}",
                }
                if odd and id % odd == 0:
                    order["vip"] = True
                out.write(json.dumps(order) + "\n")


def compare(options: Options, name: str, files: list[Path], policies: dict[str, Any]) -> tuple[str, Turns]:
    """Both read the same landed files, round by round. Return what differs, and the turns."""
    warmups = options.size(4, 0)
    worlds = {
        kind: BenchedPipeline(
            options.folder(f"{name}-{kind}"),
            SCHEMA,
            mapped,
            DeltaAppend("tables/rows"),
            options.spark,
            files={"format": "json", **arguments},
        )
        for kind, arguments in (("with", policies), ("without", {}))
    }

    def land(number: int) -> None:
        for world in worlds.values():
            world.land(number, files)

    turns = in_turn(
        lambda number: sum(worlds["with"].checkpoint().values()),
        lambda number: sum(worlds["without"].checkpoint().values()),
        warmups=warmups,
        pairs=options.pairs,
        before=land,
    )
    reader = worlds["with"].sessions().read.format("delta")
    prints = [fingerprint(reader.load(f"{world.root}/tables/rows")) for world in worlds.values()]
    return ("" if prints[0] == prints[1] else f"{name}: {prints}"), turns


def mapped(orders: Any) -> Any:
    """The declared columns, so that both tables are alike."""
    return orders.selectExpr("id", "customer", "country", "amount", "at", "note")
