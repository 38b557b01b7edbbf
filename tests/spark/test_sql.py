"""`pipeline.sql` on real Spark: in three checkpoints its tables are what Spark's SQL gives over all rows at once."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import tidegate.testing
from tests.kit.sampling import in_turn
from tidegate import Pipeline
from tidegate.pipeline.sql.mapping import is_aggregate
from tidegate.pipeline.sql.reading import parse_query
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.testing import TestSource

pytestmark = in_turn(seconds=200)

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ORDERS = [(1, "AT", 5.0, 0), (2, "DE", 7.0, 20), (3, "AT", 1.0, 40), (4, None, 9.0, 70), (5, "AT", 8.0, 130)]
ORDERS += [(6, "DE", 2.0, 150), (2, "DE", 3.0, 160), (7, "AT", 6.0, 400)]
PAYMENTS = [(1, "card", 10), (2, "cash", 30), (5, "card", 140), (4, "cash", 400), (9, "card", 400)]
STATEMENTS = {
    "good": ("SELECT id, country, amount * 2 AS twice FROM orders o WHERE o.amount > 1", []),
    "totals": (
        "SELECT country, sum(amount) AS spent, count(*) FILTER (WHERE amount > 3) AS big FROM orders GROUP BY country",
        ["country"],
    ),
    "by_day": (
        "SELECT date_format(at, 'yyyy-MM-dd') AS day, count(DISTINCT id) AS n FROM orders "
        "WHERE amount > 1 GROUP BY date_format(at, 'yyyy-MM-dd')",
        ["day"],
    ),
    "paid": (
        "SELECT o.id, p.method, o.amount + 1 AS more FROM orders o JOIN payments p ON o.id = p.id "
        "AND p.at BETWEEN o.at - INTERVAL '5' SECOND AND o.at + INTERVAL '1' MINUTE WHERE o.amount > 1",
        [],
    ),
    "ever": (
        "SELECT o.id, o.at, p.method FROM orders o LEFT JOIN payments p ON o.id = p.id",
        ["id", "at"],
    ),
    "alone": ("SELECT count(*) AS n, sum(amount) AS spent, count(DISTINCT country) AS kinds FROM orders", ["n"]),
    "unpaid": (
        "SELECT o.id, o.at, p.id AS pid FROM orders o LEFT JOIN payments p ON o.id = p.id WHERE p.id IS NULL",
        ["id", "at"],
    ),
    "either": (
        "SELECT o.id, o.at, p.id AS pid, coalesce(o.id, p.id) AS any FROM orders o FULL JOIN payments p ON o.id = p.id",
        ["id", "at", "pid"],
    ),
    "orphans": (
        "SELECT o.id, o.at, p.id AS pid, p.method FROM orders o RIGHT JOIN payments p ON o.id = p.id",
        ["id", "at", "pid"],
    ),
    "shared": ("SELECT id, o.at, p.method FROM orders o FULL JOIN payments p USING (id)", ["id", "at", "method"]),
    "shared_again": (
        "SELECT id, o.at, p.method, z.method AS other FROM orders o JOIN payments p USING (id) "
        "LEFT JOIN payments z USING (id)",
        ["id", "at"],
    ),
    "paid_between": (
        "SELECT o.id, p.method, p.at FROM orders o JOIN payments p ON o.id = p.id "
        "AND p.at > o.at - INTERVAL '200' SECOND AND p.at < o.at + INTERVAL '10' SECOND",
        [],
    ),
    "paid_from_on": (
        "SELECT o.id, p.method, p.at FROM orders o JOIN payments p ON o.id = p.id "
        "AND o.at < p.at + INTERVAL '130' SECOND AND p.at <= o.at + INTERVAL '10' SECOND",
        [],
    ),
    "settled": (
        "SELECT o.id, o.at FROM orders o LEFT SEMI JOIN payments p ON o.id = p.id "
        "AND p.at BETWEEN o.at - INTERVAL '5' SECOND AND o.at + INTERVAL '1' MINUTE",
        [],
    ),
    "owing": ("SELECT o.id, o.at, o.amount FROM orders o ANTI JOIN payments p ON o.id = p.id", ["id", "at"]),
    "per_method": (
        "SELECT p.method AS how, count(*) AS n, sum(o.amount) AS spent FROM orders o JOIN payments p ON o.id = p.id "
        "WHERE o.amount > 1 GROUP BY p.method HAVING sum(o.amount) > 5 AND max(o.amount) < 8.5",
        ["how"],
    ),
    "pairs": ("SELECT DISTINCT p.method, o.country FROM orders o JOIN payments p ON o.id = p.id", []),
    "busy": (
        "SELECT country, count(*) AS n FROM orders GROUP BY country HAVING n > 2 AND country IS NOT NULL",
        ["country"],
    ),
    "top_spent": (
        "SELECT country AS c, mean(amount) AS spent FROM (SELECT *, row_number() OVER (PARTITION BY country "
        "ORDER BY amount DESC) AS n FROM orders) r WHERE r.n <= 2 GROUP BY country",
        ["c"],
    ),
    "own_first": (
        "SELECT country AS c, max(id) AS country FROM orders GROUP BY country HAVING country < 'B'",
        ["c"],
    ),
    "as_written": (
        "SELECT id, at, to_date('2026-02-01', 'yyyy-MM-dd') AS day, to_char(id, '9.0') AS text, nvl(country, '?') c, "
        "named_struct('a', id).a AS a, mod(id, 2) AS odd, instr(country, 'A') AS place FROM orders "
        "WHERE id NOT IN (3)",
        ["id", "at"],
    ),
    "twice_ranked": (
        "SELECT country, id, m FROM (SELECT *, row_number() OVER (PARTITION BY country ORDER BY at DESC) AS m FROM "
        "(SELECT *, row_number() OVER (PARTITION BY id ORDER BY at DESC) AS n FROM orders) WHERE n = 1) WHERE m <= 2",
        ["country", "m"],
    ),
    "mean_of_groups": (
        "SELECT country, round(sum(amount) / count(*), 2) AS mean, upper(country) AS loud, 'x' AS kind FROM orders "
        "GROUP BY 1 HAVING NOT count(*) > 4",
        ["country"],
    ),
    "groups_alone": ("SELECT country FROM orders GROUP BY country", ["country"]),
    "named_rank": (
        "WITH r AS (SELECT *, row_number() OVER (PARTITION BY id ORDER BY at DESC) AS n FROM orders) "
        "SELECT R.id, r.amount FROM r WHERE (r.n = 1)",
        ["id"],
    ),
    "by_card": (
        "SELECT O.id, o.at, p.method, to_json(struct(o.id, p.method)) AS told FROM orders o LEFT JOIN payments p "
        "ON (o.id = P.id AND p.method = 'card')",
        ["id", "at"],
    ),
    "between_numbers": (
        "SELECT o.id, o.at, p.method FROM orders o JOIN payments p ON o.id = p.id AND p.id BETWEEN o.id - 1 AND o.id",
        [],
    ),
    "thrice": (
        "SELECT o.id, p.method, o.at, z.at AS then, z.amount, y.id AS yid FROM orders o "
        "JOIN payments p ON o.id = p.id AND o.at < p.at JOIN orders z ON p.id = z.id "
        "LEFT JOIN payments y ON z.id = y.id AND y.method = p.method",
        ["id", "method", "at", "then"],
    ),
    "both_kinds": (
        "SELECT id, country AS what FROM orders WHERE amount > 1 UNION ALL SELECT id, method AS what FROM payments",
        [],
    ),
    "top": (
        "SELECT country, n, id FROM (SELECT *, row_number() OVER (PARTITION BY country ORDER BY amount DESC) AS n "
        "FROM orders) WHERE n <= 2 AND country IS NOT NULL",
        ["country", "n"],
    ),
    "newest": (
        "SELECT id, amount FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY at DESC) AS n FROM orders) "
        "WHERE n = 1",
        ["id"],
    ),
    "countries": ("SELECT DISTINCT country FROM orders WHERE amount > 1", []),
}
CLOSED = "{window}.end <= TIMESTAMP '2026-01-01 00:06:30Z'"
NEAR = "o.id = p.id AND p.at BETWEEN o.at - INTERVAL '5' SECOND AND o.at + INTERVAL '1' MINUTE"
OVER = " AND ".join(f"coalesce({side}.at < TIMESTAMP '2026-01-01 00:05:00Z', true)" for side in "op")
BY_TIME = {
    "tumbling": (
        "SELECT country, window_end, count(*) AS n FROM "
        "TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '1' MINUTE)) "
        "WHERE amount > 1 GROUP BY window_start, window_end, country",
        "SELECT country, window.end AS window_end, count(*) AS n FROM orders WHERE amount > 1 "
        f"GROUP BY window(at, '1 minute'), country HAVING {CLOSED.format(window='window')}",
    ),
    "hopping": (
        "SELECT window_start, window_end, sum(amount) AS spent FROM "
        "TABLE(HOP(TABLE orders, DESCRIPTOR(at), INTERVAL '30' SECOND, INTERVAL '1' MINUTE)) "
        "GROUP BY window_start, window_end",
        "SELECT window.start AS window_start, window.end AS window_end, sum(amount) AS spent FROM orders "
        f"GROUP BY window(at, '1 minute', '30 seconds') HAVING {CLOSED.format(window='window')}",
    ),
    "sessions": (
        "SELECT country, window_start, window_end, count(*) AS n FROM "
        "TABLE(SESSION(TABLE orders PARTITION BY country, DESCRIPTOR(at), INTERVAL '45' SECOND)) "
        "GROUP BY window_start, window_end, country",
        "SELECT country, session_window.start AS window_start, session_window.end AS window_end, count(*) AS n "
        "FROM orders GROUP BY session_window(at, '45 seconds'), country "
        f"HAVING {CLOSED.format(window='session_window')}",
    ),
    **{
        f"near_{how.lower()}": (
            f"SELECT o.id, o.at, p.id AS pid, p.at AS then FROM orders o {how} JOIN payments p ON {NEAR}",
            f"SELECT o.id, o.at, p.id AS pid, p.at AS then FROM orders o {how} JOIN payments p ON {NEAR} WHERE {OVER}",
        )
        for how in ("LEFT", "RIGHT", "FULL")
    },
    "near_anti": (
        f"SELECT o.id, o.at FROM orders o LEFT ANTI JOIN payments p ON {NEAR}",
        f"SELECT o.id, o.at FROM orders o LEFT ANTI JOIN payments p ON {NEAR} WHERE o.at < "
        "TIMESTAMP '2026-01-01 00:05:00Z'",
    ),
}
"""What goes by event time, and what Spark gives of it up to where event time has come: SQL has no watermark."""


def orders(rows):
    return [{"id": i, "country": c, "amount": a, "at": START + timedelta(seconds=s)} for i, c, a, s in rows]


def payments(rows):
    return [{"id": i, "method": m, "at": START + timedelta(seconds=s)} for i, m, s in rows]


def test_in_three_checkpoints_it_gives_what_spark_gives_over_all_rows(tmp_path, spark):
    sources = {
        "orders": ("id long, country string, amount double, at timestamp", orders(ORDERS)),
        "payments": ("id long, method string, at timestamp", payments(PAYMENTS)),
    }
    pipeline = Pipeline("shop", watermark="10 s")
    for name, (schema, rows) in sources.items():
        third = len(rows) // 3
        steps = rows[:third], rows[third : 2 * third], rows[2 * third :]
        pipeline.source(name, TestSource(schema, *steps), event_time="at")
        spark.createDataFrame(rows, schema).createOrReplaceTempView(name)
    for name, (text, keys) in STATEMENTS.items():
        sink = DeltaUpsert(f"tables/{name}", keys=keys) if keys else DeltaAppend(f"tables/{name}")
        pipeline.sql(text, name=name).sink(name, sink)
    for name, (text, _) in BY_TIME.items():
        pipeline.sql(text, name=name).sink(name, DeltaAppend(f"tables/{name}"))
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        assert len(running.until_idle()) == 3
        batch = {name: text for name, (text, _) in STATEMENTS.items()} | {
            name: text for name, (_, text) in BY_TIME.items()
        }
        for name, text in batch.items():
            wanted = [row.asDict() for row in spark.sql(text).collect()]
            found = [{key: _plain(value) for key, value in row.items()} for row in running.rows(name)]
            wanted = [{key: _plain(value) for key, value in row.items()} for row in wanted]
            assert sorted(found, key=str) == sorted(wanted, key=str), name
            assert wanted, name


ORDER, PAYMENT = "id long, country string, amount double, at timestamp", "id long, method string, at timestamp"
WITHOUT_PARTNERS = {
    # what is refused, and what its help says to write instead
    "left": (
        "SELECT o.id, o.at, p.id AS pid FROM orders o LEFT JOIN payments p ON o.id = p.id AND o.amount > 5",
        "SELECT o.id, o.at, p.id AS pid FROM (SELECT *, CASE WHEN amount > 5 THEN id END AS id_if FROM orders) o "
        "LEFT JOIN payments p ON o.id_if = p.id",
    ),
    "right": (
        "SELECT o.id, o.at, p.id AS pid FROM orders o RIGHT JOIN payments p ON o.id = p.id AND p.method = 'card'",
        "SELECT o.id, o.at, p.id AS pid FROM orders o RIGHT JOIN "
        "(SELECT *, CASE WHEN method = 'card' THEN id END AS id_if FROM payments) p ON o.id = p.id_if",
    ),
    "full_of_left": (
        "SELECT o.id, o.at, p.id AS pid FROM orders o FULL JOIN payments p ON o.id = p.id AND o.amount > 5",
        "SELECT o.id, o.at, p.id AS pid FROM (SELECT *, CASE WHEN amount > 5 THEN id END AS id_if FROM orders) o "
        "FULL JOIN payments p ON o.id_if = p.id",
    ),
    "full_of_right": (
        "SELECT o.id, o.at, p.id AS pid FROM orders o FULL JOIN payments p ON o.id = p.id AND p.method = 'card'",
        "SELECT o.id, o.at, p.id AS pid FROM orders o FULL JOIN "
        "(SELECT *, CASE WHEN method = 'card' THEN id END AS id_if FROM payments) p ON o.id = p.id_if",
    ),
    "anti": (
        "SELECT o.id, o.at, o.id AS pid FROM orders o LEFT ANTI JOIN payments p ON o.id = p.id AND o.amount > 5",
        "SELECT o.id, o.at, o.id AS pid FROM (SELECT *, CASE WHEN amount > 5 THEN id END AS id_if FROM orders) o "
        "LEFT ANTI JOIN payments p ON o.id_if = p.id",
    ),
    "left_of_both": (  # at and id tell each order from all others
        "SELECT o.id, o.at, p.id AS pid FROM orders o LEFT JOIN payments p ON o.id = p.id AND p.at > o.at",
        "SELECT o.id, o.at, j.pid FROM orders o LEFT JOIN (SELECT o.id AS oid, o.at AS oat, p.id AS pid FROM orders o "
        "JOIN payments p ON o.id = p.id AND p.at > o.at) j ON o.id = j.oid AND o.at = j.oat",
    ),
}


def test_what_a_refused_condition_is_to_be_written_as_gives_the_rows_that_spark_gives(tmp_path, spark):
    """A filter in a SELECT around a stream, as the help once said, loses the rows that come without a partner."""
    statements = {name: instead for name, (_, instead) in WITHOUT_PARTNERS.items()}
    steps = [(ORDERS[:3], PAYMENTS[:1]), (ORDERS[3:6], PAYMENTS[1:4]), (ORDERS[6:], PAYMENTS[4:])]
    pipeline = Pipeline("shop", watermark="1 min")
    pipeline.source("orders", TestSource(ORDER, *(orders(step[0]) for step in steps)), event_time="at")
    pipeline.source("payments", TestSource(PAYMENT, *(payments(step[1]) for step in steps)), event_time="at")
    for name, statement in statements.items():
        pipeline.sql(statement, name=name).sink(name, DeltaUpsert(name, keys=["id", "at", "pid"]))
    spark.createDataFrame(orders(ORDERS), ORDER).createOrReplaceTempView("orders")
    spark.createDataFrame(payments(PAYMENTS), PAYMENT).createOrReplaceTempView("payments")
    with tidegate.testing.run(pipeline, tmp_path, spark=spark) as running:
        assert len(running.until_idle()) == 3
        for name, (refused, _) in WITHOUT_PARTNERS.items():
            expected = [tuple(map(_plain, row)) for row in spark.sql(refused).collect()]
            found = [tuple(_plain(row[each]) for each in ("id", "at", "pid")) for row in running.rows(name)]
            assert sorted(found, key=str) == sorted(expected, key=str), name


def _plain(value):
    """Spark's rows have no time zone, which is UTC."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def test_all_aggregates_of_spark_are_known_as_such(spark):
    """A stage would compute them of each checkpoint's rows."""
    registry = spark._jsparkSession.sessionState().functionRegistry()
    names = registry.listFunction()
    unknown = []
    for place in range(names.size()):
        info, name = registry.lookupFunction(names.apply(place)), names.apply(place).funcName()
        if info.isDefined() and info.get().getGroup() == "agg_funcs":
            call = parse_query(f"SELECT {name}(x) AS y FROM orders").tree.expressions[0].this
            unknown += [name] if not is_aggregate(call) else []
    assert not unknown
