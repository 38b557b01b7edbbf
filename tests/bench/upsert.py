"""Changed rows into a large table by key, against delta-spark's MERGE of the same rows in the same session.

Keys are spread over the whole table, so that every file of it holds some: the worst case for all. `ratio` is the
publish alone against the MERGE, `ratio_checkpoint` all from the trigger to the end, with staging and records.
`…_vectors`: against MERGE into a table with deletion vectors, which writes less and leaves more to readers.
"""

from __future__ import annotations

import os
import shutil
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.harness import Budget, Options, Pairs, Result, Turns, in_turn, median_of
from tests.bench.spark import fingerprint, sessions
from tests.bench.worlds import BenchedPipeline
from tidegate.sinks import DeltaUpsert

SCHEMA = "id long, round long, customer long, country string, amount decimal(12,2), at timestamp, note string"
COLUMNS = (
    "id",
    "cast({round} AS long) AS round",
    "pmod(xxhash64(id, {round}), 50000) AS customer",
    "element_at(array('AT', 'BE', 'CH', 'DE', 'ES'), cast(pmod(hash(id, {round}), 5) AS int) + 1) AS country",
    "cast(pmod(hash(id, {round}, 1), 100000) / 100 AS decimal(12,2)) AS amount",
    "timestamp_micros(1700000000000000 + id * 1000 + {round}) AS at",
    "concat('order ', id, ' as of ', {round}) AS note",
)
FILES = 8
RIVALS = ("merged", "vectors")
VECTORS = 2
"""Which of the sides merges into a table with deletion vectors."""

STEP = 2_654_435_761
"""Prime, so that (n * STEP) % size visits every number below size once, far from the one before."""


def run(options: Options) -> Result:
    rows, changed = options.size(5_000_000, 4_000), options.size(100_000, 200)
    base = options.cached(f"upsert-base-{rows}", lambda folder: make_base(options, folder, rows))
    world, turns = measure(options, base, rows, changed)
    counted = world.parts[-options.pairs :]
    published = [parts["publishing"] for parts in counted]
    publish = Pairs(published, turns.wall().rival)
    wrong = differs(world)
    return Result(
        "upsert",
        ours_s=statistics.median(publish.ours),
        pairs=options.pairs,
        rival_s=statistics.median(publish.rival),
        ratio=publish.ratio,
        equal=not wrong,
        wrong="; ".join(wrong),
        keys={
            "spread": publish.spread(),
            "ratio_vectors": Pairs(published, turns.wall(VECTORS).rival).ratio,
            "checkpoint_s": statistics.median(turns.wall().ours),
            "ratio_checkpoint": turns.wall().ratio,
            "ratio_cores_checkpoint": turns.core().ratio,
            "ratio_checkpoint_vectors": turns.wall(VECTORS).ratio,
            "ratio_cores_checkpoint_vectors": turns.core(VECTORS).ratio,
            "parts": median_of(counted),
            "rows": rows,
            "changed": changed,
        },
        budgets=(Budget("ratio", 0.25), Budget("ratio_vectors", 0.25)),
    )


def make_base(options: Options, folder: Path, rows: int) -> None:
    """The large table, as delta-spark writes it."""
    spark = sessions(options.spark)()
    table = spark.range(0, rows, 1, FILES).selectExpr(*(column.format(round=0) for column in COLUMNS))
    table.write.format("delta").save(f"{folder}/table")


def copy_of(table: Path, to: Path) -> None:
    """The same table once more: its data files are shared, for nobody changes them; its log is its own."""
    shutil.copytree(table, to, copy_function=os.link)
    shutil.rmtree(to / "_delta_log")
    shutil.copytree(table / "_delta_log", to / "_delta_log")


def measure(options: Options, base: Path, rows: int, changed: int) -> tuple[BenchedPipeline, Turns]:
    """Both sides take the same changes into a table of their own, round by round."""
    sink = DeltaUpsert("tables/ours", keys=["id"])
    world = BenchedPipeline(options.folder("upsert"), SCHEMA, lambda changes: changes, sink, options.spark)
    for name in ("ours", *RIVALS):
        copy_of(base / "table", world.root / "tables" / name)
    with_vectors = f"ALTER TABLE delta.`{world.root}/tables/vectors` SET TBLPROPERTIES"
    world.sessions().sql(f"{with_vectors} ('delta.enableDeletionVectors' = 'true')")

    def merge(name: str, number: int) -> None:
        spark = world.sessions()
        spark.read.schema(SCHEMA).parquet(str(world.landing(number))).createOrReplaceTempView("changes")
        spark.sql(
            f"MERGE INTO delta.`{world.root}/tables/{name}` t USING changes s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return world, in_turn(
        lambda number: sum(world.checkpoint().values()),
        *(partial(merge, name) for name in RIVALS),
        warmups=options.size(2, 0),
        pairs=options.pairs,
        before=lambda number: land_changes(world, number, rows, changed),
    )


def land_changes(world: BenchedPipeline, number: int, rows: int, changed: int) -> None:
    """`changed` keys, each once, all over the table and a little beyond it: most are there, some are new."""
    size = rows + rows // 50
    keys = f"pmod((id + {number * changed}) * {STEP}, {size}) AS id"
    changes = world.sessions().range(changed).selectExpr(keys)
    made = world.root / "made" / f"{number:04d}"
    changes.selectExpr(*(column.format(round=number + 1) for column in COLUMNS)).write.parquet(str(made))
    world.land(number, sorted(made.glob("*.parquet")))


def differs(world: BenchedPipeline) -> list[str]:
    """All tables hold the same rows."""
    reader: Any = world.sessions().read.format("delta")
    ours, *rivals = (fingerprint(reader.load(f"{world.root}/tables/{name}")) for name in ("ours", *RIVALS))
    return [f"ours has {ours}, {name} {rival}" for name, rival in zip(RIVALS, rivals, strict=True) if ours != rival]
