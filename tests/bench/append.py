"""A stateless map and a Delta append: the whole checkpoint, from plan to published, against a plain script.

The script does what a user would write without tidegate: read the same files, map, append with delta-spark; it
knows no positions, and a crash leaves it in doubt. Both run in one session on the same input, round by round.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from tests.bench.harness import Budget, Options, Result, Turns, in_turn, median_of
from tests.bench.spark import fingerprint, sessions
from tests.bench.worlds import BenchedPipeline
from tidegate.sinks import DeltaAppend

SCHEMA = "id long, customer long, country string, amount decimal(12,2), at timestamp, note string"
COUNTRIES = ("AT", "BE", "CH", "DE", "ES", "FR", "IT", "New York/NY", "a=b", "Curaçao é")
FILES = 4


def run(options: Options) -> Result:
    rows = options.size(1_000_000, 2_000)
    files = sorted(options.cached("append-input", lambda folder: make_input(options, folder, rows)).glob("*.parquet"))
    plain, turns = measure(options, "append", files, ())
    parted, turns_parted = measure(options, "append-partitioned", files, ("country",))
    expected = (warmups(options) + options.pairs) * (rows - len(range(0, rows, 50)))
    wrong = differs(plain, expected) + differs(parted, expected)
    return Result(
        "append",
        ours_s=statistics.median(turns.wall().ours),
        pairs=options.pairs,
        rival_s=statistics.median(turns.wall().rival),
        ratio=turns.wall().ratio,
        equal=not wrong,
        wrong="; ".join(wrong),
        keys={
            "spread": turns.wall().spread(),
            "ratio_partitioned": turns_parted.wall().ratio,
            "spread_partitioned": turns_parted.wall().spread(),
            "ratio_cores": turns.core().ratio,
            "ratio_cores_partitioned": turns_parted.core().ratio,
            "parts": median_of(plain.parts[-options.pairs :]),
            "parts_partitioned": median_of(parted.parts[-options.pairs :]),
            "rows": rows,
        },
        budgets=(Budget("ratio", 0.75), Budget("ratio_partitioned", 0.85)),
    )


def warmups(options: Options) -> int:
    """Rounds until the JVM has compiled what matters."""
    return options.size(8, 0)


def make_input(options: Options, folder: Path, rows: int) -> None:
    """Files of orders; every fiftieth lacks its amount."""
    names = ", ".join(f"'{name}'" for name in COUNTRIES)
    spark = sessions(options.spark)()
    spark.range(0, rows, 1, FILES).selectExpr(
        "id",
        "pmod(xxhash64(id), 50000) AS customer",
        f"element_at(array({names}), cast(pmod(hash(id), {len(COUNTRIES)}) AS int) + 1) AS country",
        "if(id % 50 = 0, NULL, cast(pmod(hash(id, 1), 100000) / 100 AS decimal(12,2))) AS amount",
        "timestamp_micros(1700000000000000 + id * 1000) AS at",
        "concat('order ', id, ' of ', pmod(hash(id, 2), 1000)) AS note",
    ).write.mode("overwrite").parquet(str(folder))


def mapped(orders: Any) -> Any:
    """What both sides compute."""
    from pyspark.sql import functions as f

    return (
        orders.where("amount is not null")
        .withColumn("gross", f.expr("cast(amount * 1.2 AS decimal(14,3))"))
        .withColumn("day", f.to_date("at"))
        .withColumn("note", f.upper("note"))
    )


def measure(
    options: Options, name: str, files: list[Path], partition_by: tuple[str, ...]
) -> tuple[BenchedPipeline, Turns]:
    """Both sides append the same landed files to a table of their own, round by round."""
    sink = DeltaAppend("tables/ours", partition_by=partition_by)
    world = BenchedPipeline(options.folder(name), SCHEMA, mapped, sink, options.spark)

    def rival(number: int) -> None:
        orders = world.sessions().read.schema(SCHEMA).parquet(str(world.landing(number)))
        writer = mapped(orders).write.format("delta").mode("append").partitionBy(*partition_by)
        writer.save(f"{world.root}/tables/rival")

    return world, in_turn(
        lambda number: sum(world.checkpoint().values()),
        rival,
        warmups=warmups(options),
        pairs=options.pairs,
        before=lambda number: world.land(number, files),
    )


def differs(world: BenchedPipeline, expected: int) -> list[str]:
    """Both tables hold the same rows, and as many as went in."""
    reader = world.sessions().read.format("delta")
    ours, rival = (fingerprint(reader.load(f"{world.root}/tables/{name}")) for name in ("ours", "rival"))
    if ours == rival and ours["rows"] == expected:
        return []
    return [f"{world.root.name}: ours has {ours}, the script's {rival}, {expected} rows went in"]
