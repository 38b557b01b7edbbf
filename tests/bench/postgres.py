"""Rows into PostgreSQL: whole checkpoints, against Spark's JDBC writer, on one real server.

append   all of a checkpoint, from plan to published, with staging; against `frame.write.jdbc` of the same rows, which
         knows no positions, and commits each of Spark's tasks by itself
upsert   changed rows into a large table; against the same writer into a staging table, and then one SQL statement

`ratio` and `ratio_upsert` are to the writer as it is, `…_tuned` to it with the driver's fastest settings.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.append import FILES, warmups
from tests.bench.harness import ROOT, Budget, Options, Pairs, Result, Turns, in_turn, median_of
from tests.bench.spark import sessions
from tests.bench.worlds import BenchedPipeline
from tests.kit.postgres import Server, server
from tests.kit.postgres_sinks import CONNECTION, connections
from tidegate.connectors.postgres.upsert import FILL
from tidegate.sinks import PostgresAppend, PostgresUpsert
from tools.setup import fetch_jars

SCHEMA = "id long, customer long, country string, amount decimal(12,2), at timestamp"
TABLE = "id bigint, customer bigint, country text, amount numeric(12,2), at timestamptz"
COLUMNS = (
    "id",
    "pmod(xxhash64(id, {round}), 50000) AS customer",
    "element_at(array('AT', 'BE', 'CH', 'DE', 'ES'), cast(pmod(hash(id, {round}), 5) AS int) + 1) AS country",
    "cast(pmod(hash(id, {round}, 1), 100000) / 100 AS decimal(12,2)) AS amount",
    "timestamp_micros(1700000000000000 + id * 1000 + {round}) AS at",
)
TUNED = 2
"""Which of the sides writes with the driver's fastest settings."""

STEP = 2_654_435_761
"""Prime, so that (n * STEP) % size visits every number below size once, far from the one before."""


def run(options: Options) -> Result:
    rows, changed = options.size(1_000_000, 2_000), options.size(100_000, 200)
    jars = ROOT / ".cache" / "bench-jars"
    fetch_jars(Path(__file__).with_suffix(".toml"), jars)
    with server() as database:
        appended, appends, wrong = measure_append(options, database, rows, next(jars.glob("*.jar")))
        upserted, upserts, different = measure_upsert(options, database, rows, changed)
    published = Pairs([parts["publishing"] for parts in upserted.parts[-options.pairs :]], upserts.wall().rival)
    return Result(
        "postgres",
        ours_s=statistics.median(appends.wall().ours),
        pairs=options.pairs,
        rival_s=statistics.median(appends.wall().rival),
        ratio=appends.wall().ratio,
        equal=not wrong + different,
        wrong="; ".join(wrong + different),
        keys={
            "spread": appends.wall().spread(),
            "ratio_tuned": appends.wall(TUNED).ratio,
            "ratio_cores": appends.core().ratio,
            "ratio_upsert": upserts.wall().ratio,
            "spread_upsert": upserts.wall().spread(),
            "ratio_upsert_tuned": upserts.wall(TUNED).ratio,
            "ratio_upsert_publish": published.ratio,
            "upsert_s": statistics.median(upserts.wall().ours),
            "upsert_rival_s": statistics.median(upserts.wall().rival),
            "parts": median_of(appended.parts[-options.pairs :]),
            "parts_upsert": median_of(upserted.parts[-options.pairs :]),
            "rows": rows,
            "changed": changed,
        },
        budgets=(Budget("ratio", 0.5), Budget("ratio_upsert", 0.5)),
    )


def measure_append(
    options: Options, database: Server, rows: int, jar: Path
) -> tuple[BenchedPipeline, Turns, list[str]]:
    """Both sides append the same rows to a table of their own, which is empty before each round."""
    made = options.cached("postgres-append", lambda folder: make_rows(options, folder, rows))
    files, wrong = sorted(made.glob("*.parquet")), []
    database.run(*(f"CREATE TABLE {name} ({TABLE})" for name in ("ours", "rival", "tuned")))
    world = begin(options, database, "postgres-append", PostgresAppend("ours", connection=CONNECTION))
    world.sessions().sql(f"ADD JAR '{jar}'")

    def before(number: int) -> None:
        if number:
            wrong.extend(differs(database, "ours", "rival", rows))
        database.run("TRUNCATE ours, rival, tuned", "CHECKPOINT")
        world.land(number, files)

    turns = in_turn(
        lambda number: sum(world.checkpoint().values()),
        lambda number: write_jdbc(world, database, number, "rival"),
        lambda number: write_jdbc(world, database, number, "tuned", fast=True),
        warmups=warmups(options),
        pairs=options.pairs,
        before=before,
    )
    return world, turns, wrong + differs(database, "ours", "rival", rows)


def measure_upsert(
    options: Options, database: Server, rows: int, changed: int
) -> tuple[BenchedPipeline, Turns, list[str]]:
    """Both sides take the same changes into a large table of their own, round by round."""
    names = ("ours_large", "rival_large", "tuned_large")
    filled = f"SELECT n, n % 1000, 'AT', n % 100, to_timestamp(n) FROM generate_series(0, {rows - 1}) n"
    for name in names:
        # Each as its side makes it: the sink leaves room in the pages of a table for upserts.
        room = f"WITH (fillfactor = {FILL})" if name == "ours_large" else ""
        database.run(f"CREATE TABLE {name} ({TABLE}) {room}", f"INSERT INTO {name} {filled}")
        database.run(f"ALTER TABLE {name} ADD PRIMARY KEY (id)", f"VACUUM ANALYZE {name}")
    database.run(f"CREATE TABLE staging ({TABLE})")
    world = begin(
        options, database, "postgres-upsert", PostgresUpsert("ours_large", connection=CONNECTION, keys=["id"])
    )
    others = ("customer", "country", "amount", "at")
    changes = ", ".join(f"{name} = excluded.{name}" for name in others)

    def by_hand(number: int, table: str, *, fast: bool) -> None:
        database.run("TRUNCATE staging")
        write_jdbc(world, database, number, "staging", fast=fast)
        merge = f"INSERT INTO {table} SELECT * FROM staging ON CONFLICT (id) DO UPDATE SET {changes}"
        database.run("ANALYZE staging", merge)

    def before(number: int) -> None:
        size = rows + rows // 50
        keys = (
            world.sessions()
            .range(0, changed, 1, FILES)
            .selectExpr(f"pmod((id + {number * changed}) * {STEP}, {size}) AS id")
        )
        landed = world.root / "made" / f"{number:04d}"
        keys.selectExpr(*(column.format(round=number + 1) for column in COLUMNS)).write.parquet(str(landed))
        world.land(number, sorted(landed.glob("*.parquet")))
        database.run(f"VACUUM {', '.join(names)}", "CHECKPOINT")

    turns = in_turn(
        lambda number: sum(world.checkpoint().values()),
        lambda number: by_hand(number, "rival_large", fast=False),
        lambda number: by_hand(number, "tuned_large", fast=True),
        warmups=options.size(3, 0),
        pairs=options.pairs,
        before=before,
    )
    return world, turns, differs(database, *names[:2], None) + differs(database, *names[::2], None)


def make_rows(options: Options, folder: Path, rows: int) -> None:
    columns = (column.format(round=0) for column in COLUMNS)
    sessions(options.spark)().range(0, rows, 1, FILES).selectExpr(*columns).write.mode("overwrite").parquet(str(folder))


def begin(options: Options, database: Server, name: str, sink: Any) -> BenchedPipeline:
    same: Callable[[Any], Any] = lambda rows: rows  # noqa: E731
    return BenchedPipeline(options.folder(name), SCHEMA, same, sink, options.spark, connections=connections(database))


def write_jdbc(world: BenchedPipeline, database: Server, number: int, table: str, *, fast: bool = False) -> None:
    """What a user would write. fast: many rows in one statement, which is the driver's fastest way."""
    login = {name: database.options[name] for name in ("user", "password")}
    url = f"jdbc:postgresql://127.0.0.1:{database.port}/postgres" + ("?reWriteBatchedInserts=true" if fast else "")
    rows = world.sessions().read.schema(SCHEMA).parquet(str(world.landing(number)))
    writer = rows.write.format("jdbc").options(url=url, dbtable=table, driver="org.postgresql.Driver", **login)
    writer.options(**({"batchsize": "10000"} if fast else {})).mode("append").save()


def differs(database: Server, ours: str, rival: str, expected: int | None) -> list[str]:
    """Both tables hold the same rows, and as many as went in."""
    query = "SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM {} t"
    (found,), (theirs,) = database.run(query.format(ours)), database.run(query.format(rival))
    if found == theirs and found[0] and expected in (None, found[0]):
        return []
    return [f"{ours} has {found}, {rival} {theirs}; {expected} rows went in"]
