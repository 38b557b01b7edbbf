"""Random SELECTs in random cuts: what `pipeline.sql` takes gives what Spark gives of all rows; the rest is refused."""

from __future__ import annotations

import itertools
import random
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

import tidegate.testing
from tests.kit.sampling import in_turn, turn_of
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.testing import TestSource

pytestmark = in_turn(seconds=30)

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SCHEMAS = {
    "orders": "id long, oid long, country string, amount long, at timestamp",
    "payments": "id long, pid long, method string, at timestamp",
}
OF = {"o": "orders", "p": "payments", "z": "orders"}
ROW = {"orders": "oid", "payments": "pid"}
"""What no two rows of a stream share."""
CONDITIONS = {
    "orders": ("{}.amount > 3", "{}.country = 'AT'", "{}.country IS NULL OR {}.amount < 7", "{}.oid % 3 <> 1"),
    "payments": ("{}.method = 'card'", "{}.method IS NOT NULL", "{}.pid % 2 = 0"),
}
KEYS = {
    "orders": ("{}.country", "{}.id % 2", "{}.amount > 4", "upper({}.country)"),
    "payments": ("{}.method", "{}.id"),
}
AGGREGATES = {
    "orders": ("sum({}.amount)", "max({}.at)", "count(DISTINCT {}.country)", "avg({}.amount)", "count({}.country)"),
    "payments": ("min({}.method)", "count(DISTINCT {}.id)", "count(*) FILTER (WHERE {}.method = 'cash')"),
}
JOINS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN")
SEEDS = turn_of(range(12), 12)
STATEMENTS = 5


def rows_of(stream: str, rng: random.Random) -> list[dict[str, Any]]:
    """A few rows, with nulls and with ids that several of them share."""
    rows = []
    for number in range(rng.randint(8, 16)):
        row = {"id": rng.choice([None, *range(6)]), ROW[stream]: number, "at": START + timedelta(seconds=number)}
        if stream == "orders":
            row |= {"country": rng.choice([None, "AT", "at", "DE"]), "amount": rng.choice([None, *range(9)])}
        else:
            row |= {"method": rng.choice([None, "card", "cash"])}
        rows.append(row)
    return rows


def some(rng: random.Random, of: dict[str, tuple[str, ...]], sides: list[str], most: int) -> list[str]:
    """Up to so many texts about these sides."""
    texts = [text.replace("{}", side) for side in sides for text in of[OF[side]]]
    return rng.sample(texts, rng.randint(0, min(most, len(texts))))


def statement(rng: random.Random) -> tuple[str, list[str]]:
    """A SELECT, and its keys."""
    origin, sides = rng.choice((one_stream, ranked, joined, joined))(rng)
    conditions = [f"({text})" for text in some(rng, CONDITIONS, sides, 2)]
    before = "AND" if "WHERE o.n" in origin else "WHERE"
    where = f" {before} {' AND '.join(conditions)}" if conditions else ""
    shape = rng.choice(("rows", "distinct", "groups", "groups", "all"))
    if shape == "rows":
        keys = [f"{side}.{ROW[OF[side]]} AS {side}_row" for side in sides]
        more = [f"{text} AS c{n}" for n, text in enumerate(some(rng, KEYS, sides, 2))]
        return f"SELECT {', '.join(keys + more)} {origin}{where}", [f"{side}_row" for side in sides]
    by = [f"{text} AS k{n}" for n, text in enumerate(some(rng, KEYS, sides, 2) or [f"{sides[0]}.id"])]
    names = [f"k{n}" for n in range(len(by))]
    if shape == "distinct":
        return f"SELECT DISTINCT {', '.join(by)} {origin}{where}", names
    functions = [*some(rng, AGGREGATES, sides, 3), "count(*)"]
    computed = [f"{text} AS f{n}" for n, text in enumerate(functions)]
    having = rng.choice(("", "", " HAVING count(*) > 1", f" HAVING max({sides[0]}.id) IS NOT NULL AND f0 IS NOT NULL"))
    if shape == "all":
        return f"SELECT count(*) AS total, {', '.join(computed)} {origin}{where}", ["total"]
    group = ", ".join(text.partition(" AS ")[0] for text in by)
    return f"SELECT {', '.join(by + computed)} {origin}{where} GROUP BY {group}{having}", names


def one_stream(rng: random.Random) -> tuple[str, list[str]]:
    side = rng.choice(("o", "p"))
    return f"FROM {OF[side]} {side}", [side]


def ranked(rng: random.Random) -> tuple[str, list[str]]:
    rank = rng.choice(("row_number", "rank", "dense_rank"))
    order = "amount DESC, oid DESC" if rank == "row_number" else "amount DESC"
    inner = f"SELECT *, {rank}() OVER (PARTITION BY country ORDER BY {order}) AS n FROM orders"
    where = rng.choice(("", " WHERE amount > 1"))
    return f"FROM ({inner}{where}) o WHERE o.n {rng.choice(('= 1', '<= 2', '< 4'))}", ["o"]


def joined(rng: random.Random) -> tuple[str, list[str]]:
    text, sides = "FROM orders o", ["o"]
    for right in ("p", "z")[: rng.randint(1, 2)]:
        kind = rng.choice(JOINS)
        on = f"{sides[-1]}.id = {right}.id"
        if kind == "JOIN":
            near = f"{right}.at BETWEEN o.at AND o.at + INTERVAL 5 SECOND"
            on += rng.choice(("", f" AND {right}.at > o.at", f" AND {near}"))
        text += f" {kind} {OF[right]} {right} ON {on}"
        if "SEMI" not in kind and "ANTI" not in kind:
            sides.append(right)
    return text, sides


def taken(text: str, keys: list[str]) -> bool:
    """Whether a statement becomes a stream. One that does not is refused with its place, whoever refuses it."""
    pipeline = Pipeline("shop", watermark="1 h")
    for name, schema in SCHEMAS.items():
        rows = pipeline.source(name, TestSource(schema, []), event_time="at")
        rows.sink(name, DeltaAppend(f"tables/{name}"))  # a stream that is read by nothing would be refused
    try:
        pipeline.sql(text, name="x").sink("x", DeltaUpsert("tables/x", keys=keys))
        pipeline.graph()
    except Invalid as refused:
        what, help = refused.what, refused.help
    else:
        return True
    assert re.search(r"SQL, line \d+, column \d+", what), text
    assert help, text
    return False


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_taken_gives_what_spark_gives(tmp_path, spark, seed):
    rng = random.Random(seed)
    texts = (drawn for drawn in iter(lambda: statement(rng), None) if taken(*drawn))
    chosen = dict(enumerate(itertools.islice(texts, STATEMENTS)))
    pipeline = Pipeline("shop", watermark="1 h")
    for name, schema in SCHEMAS.items():
        rows = rows_of(name, rng)
        spark.createDataFrame(rows, schema).createOrReplaceTempView(name)
        first, last = sorted(rng.sample(range(len(rows) + 1), 2))
        source = TestSource(schema, rows[:first], rows[first:last], rows[last:])
        pipeline.source(name, source, event_time="at")
    for number, (text, keys) in chosen.items():
        pipeline.sql(text, name=f"s{number}").sink(f"s{number}", DeltaUpsert(f"tables/s{number}", keys=keys))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        running.until_idle()
        for number, (text, _) in chosen.items():
            wanted = [_comparable(row.asDict()) for row in spark.sql(text).collect()]
            wanted = [row for row in wanted if row.get("total") != 0]  # without rows a total is none here, there 0
            found = [_comparable(row) for row in running.rows(f"s{number}")]
            assert sorted(found, key=repr) == sorted(wanted, key=repr), text


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Spark's moments have no time zone, which is UTC."""
    return {name: value.replace(tzinfo=None) if isinstance(value, datetime) else value for name, value in row.items()}
