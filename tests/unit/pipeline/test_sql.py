"""What `pipeline.sql` declares: the operators that one would declare by hand, or a refusal that names the place."""

from __future__ import annotations

import pytest

from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.pipeline.graph.nodes import OperatorNode
from tidegate.pipeline.sql.columns import JoinedColumns, StreamColumns
from tidegate.pipeline.sql.reading import parse_query
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files


@pytest.fixture
def pipeline() -> Pipeline:
    made = Pipeline("shop", watermark="1 min")
    schema = "id long, country string, amount double, at timestamp"
    made.source("orders", Files("orders/*.json", schema=schema), event_time="at")
    made.source("payments", Files("payments/*.json", schema="id long, method string, at timestamp"), event_time="at")
    return made


def operators(pipeline: Pipeline) -> dict[str, tuple[str, dict]]:
    """The operators by name, with their kind and what was declared, as far as it is no default."""
    found = {}
    for node in pipeline._stages:
        if isinstance(node, OperatorNode):
            told = {
                key: value for key, value in node.operator.describe().items() if value not in (None, 0, "drop", "close")
            }
            found[node.name] = (node.operator.kind, told)
    return found


TUMBLE = "TABLE(TUMBLE(TABLE orders, DESCRIPTOR(at), INTERVAL '10' SECOND))"
WINDOW = {"by": ["country"], "functions": {"n": "COUNT(*)"}, "event_time": "at"}
NEAR = {"on": ["o__id = p__id"], "within": ["-300 s", "3600 s"], "how": "inner", "times": ["o__at", "p__at"]}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("select id, amount * 2 as twice from orders as o where o.amount > 0", {}),
        (
            "select country, sum(amount) as spent, count(*) filter (where amount > 3) as big from orders "
            "group by country",
            {
                "x": (
                    "aggregate",
                    {
                        "by": ["country"],
                        "functions": {"spent": "SUM(amount)", "big": "COUNT(*) FILTER(WHERE amount > 3)"},
                    },
                )
            },
        ),
        (
            "select year(at) as y, count(distinct id) as n from orders where amount > 1 group by year(at)",
            {"x": ("aggregate", {"by": ["y"], "functions": {"n": "COUNT(DISTINCT id)"}})},
        ),
        (
            f"select window_start, window_end, country, count(*) as n from {TUMBLE} "
            "group by window_start, window_end, country",
            {"x": ("window", {"tumbling": 10.0} | WINDOW)},
        ),
        (
            "select country, count(*) as n from TABLE(HOP(TABLE orders, DESCRIPTOR(at), INTERVAL '2' SECOND, "
            "INTERVAL '1' MINUTE)) group by country, window_start, window_end",
            {"x-window": ("window", {"hopping": (60.0, 2.0)} | WINDOW)},
        ),
        (
            "select country, count(*) as n from TABLE(SESSION(TABLE orders PARTITION BY country, DESCRIPTOR(at),\n"
            "INTERVAL '10' MINUTES)) group by country, window_start, window_end",
            {"x-window": ("window", {"session": 600.0} | WINDOW)},
        ),
        (
            "select o.id, p.method from orders o join payments p on o.id = p.id "
            "and p.at between o.at - interval '5' minutes and o.at + interval 1 hour where o.amount > 1",
            {"x-join": ("join", NEAR)},
        ),
        (
            "select o.id, p.method from orders o join payments p on p.id = o.id "
            "and o.at between p.at - interval '1' hour and p.at + interval '5' minutes",
            {"x-join": ("join", NEAR)},
        ),
        (
            "select o.id, p.method from orders o left join payments p on o.id = p.id",
            {"x-join": ("join", {"on": ["on_1_0"], "how": "left"})},
        ),
        (
            "select * from (select *, row_number() over (partition by country order by amount desc, id nulls last) "
            "as n from orders) where n <= 3",
            {"x-top": ("top-n", {"n": 3, "by": ["country"], "order_by": ["amount desc", "id asc"]})},
        ),
        (
            "select id, amount from (select *, row_number() over (partition by id order by at desc) as n from orders) "
            "where n = 1 and amount > 2",
            {"x-latest": ("latest", {"by": ["id"], "order_by": ["at"]})},
        ),
        (
            "select * from (select *, rank() over (partition by window_end order by n desc) as place from "
            f"(select window_start, window_end, country, count(*) as n from {TUMBLE} "
            "group by window_start, window_end, country)) where place = 1",
            {
                "x-window": ("window", {"tumbling": 10.0} | WINDOW),
                "x-top": ("top-n", {"n": 1, "by": ["window_end"], "order_by": ["n desc"], "rank": "rank"}),
            },
        ),
        ("select distinct country from orders", {"x": ("deduplicate", {"by": ["country"]})}),
        (
            "select sum(amount) as s from orders",
            {"x": ("aggregate", {"by": [], "functions": {"s": "SUM(amount)"}})},
        ),
        (
            "select o.id, p.method, z.amount from orders o join payments p on o.id = p.id "
            "left join orders z on z.id = p.id and z.country = o.country",
            {
                "x-join": ("join", {"on": ["o__id = p__id"], "how": "inner"}),
                "x-join-2": ("join", {"on": ["on_2_0", "on_2_1"], "how": "left"}),
            },
        ),
        ("select id from orders union all select id from payments union all (select id from orders)", {}),
        (
            "select o.id, p.method from orders o right join payments p on o.id = p.id",
            {"x-join": ("join", {"on": ["on_1_0"], "how": "right"})},
        ),
        (
            "select o.id from orders o left semi join payments p on o.id = p.id",
            {"x-join": ("join", {"on": ["o__id = p__id"], "how": "semi"})},
        ),
        (
            "select o.id from orders o anti join payments p on o.id = p.id",
            {"x-join": ("join", {"on": ["o__id = p__id"], "how": "anti"})},
        ),
        (
            "select id, o.at from orders o join payments p using (id) left join payments q using (id)",
            {
                "x-join": ("join", {"on": ["o__id = p__id"], "how": "inner"}),
                "x-join-2": ("join", {"on": ["on_2_0"], "how": "left"}),
            },
        ),
        (
            "select p.method, sum(o.amount) as spent from orders o join payments p on o.id = p.id group by p.method",
            {
                "x-join": ("join", {"on": ["o__id = p__id"], "how": "inner"}),
                "x": ("aggregate", {"by": ["method"], "functions": {"spent": "SUM(`o__amount`)"}}),
            },
        ),
        (
            "select distinct p.method from orders o join payments p on o.id = p.id",
            {
                "x-join": ("join", {"on": ["o__id = p__id"], "how": "inner"}),
                "x": ("deduplicate", {"by": ["method"]}),
            },
        ),
        (
            "select country as c, count(*) as n from orders o group by o.country having n > 1 and max(amount) < 9",
            {"x-aggregate": ("aggregate", {"by": ["c"], "functions": {"n": "COUNT(*)", "value": "MAX(amount)"}})},
        ),
        (
            "select distinct country, mean(amount) as usual from orders group by country",
            {"x-aggregate": ("aggregate", {"by": ["country"], "functions": {"usual": "MEAN(amount)"}})},
        ),
        (
            "select country, count(*) as n from (select *, row_number() over (partition by country order by at desc) "
            "as place from orders) where place = 1 group by country",
            {
                "x-latest": ("latest", {"by": ["country"], "order_by": ["at"]}),
                "x": ("aggregate", {"by": ["country"], "functions": {"n": "COUNT(*)"}}),
            },
        ),
        (
            "select * from (select o.*, row_number() over (partition by country order by at desc) as m from "
            "(select * /* all */, row_number() over (partition by id order by at desc) as n from orders) o "
            "where n = 1) where m <= 2",
            {
                "x-top": ("top-n", {"n": 1, "by": ["id"], "order_by": ["at desc"]}),
                "x-top-2": ("top-n", {"n": 2, "by": ["country"], "order_by": ["at desc"]}),
            },
        ),
        (
            "select any(amount > 3) as v, collect_list(id, 10) as ids, first(id, at) as id from orders",
            {
                "x": (
                    "aggregate",
                    {
                        "by": [],
                        "functions": {"v": "ANY(amount > 3)", "ids": "COLLECT_LIST(id, 10)", "id": "FIRST(id, at)"},
                    },
                )
            },
        ),
        (
            f"select orders.country, count(*) as count, max(id) as late from {TUMBLE} "
            "group by window_start, window_end, country having late > 3",
            {
                "x-window": (
                    "window",
                    {"tumbling": 10.0} | WINDOW | {"functions": {"count_2": "COUNT(*)", "late_2": "MAX(id)"}},
                )
            },
        ),
        (
            "select country, round(sum(amount) / count(*), 2) as mean, 'x' as kind from orders group by 1",
            {
                "x-aggregate": (
                    "aggregate",
                    {"by": ["country"], "functions": {"value": "SUM(amount)", "value_2": "COUNT(*)"}},
                )
            },
        ),
        (
            "select country from orders group by (country)",
            {"x-aggregate": ("aggregate", {"by": ["country"], "functions": {"rows": "COUNT(*)"}})},
        ),
        (
            "with r as (select *, row_number() over (partition by id order by at desc) as n from orders) "
            "select R.id, amount from r where (R.n = 1)",
            {"x-latest": ("latest", {"by": ["id"], "order_by": ["at"]})},
        ),
        (
            "select O.id, p.method from orders o left join payments p on (o.id = P.id and P.method = 'card')",
            {"x-join": ("join", {"on": ["on_1_0"], "how": "left"})},
        ),
        (
            "select o.id from orders o join payments p on o.id = p.id and p.id between o.amount and o.amount",
            {"x-join": ("join", {"on": ["o__id = p__id"], "how": "inner"})},
        ),
        (
            f"select count(*) as count, max(id) as count_2 from {TUMBLE} group by window_start, window_end",
            {
                "x-window": (
                    "window",
                    {
                        "tumbling": 10.0,
                        "by": [],
                        "event_time": "at",
                        "functions": {"count_3": "COUNT(*)", "count_2": "MAX(id)"},
                    },
                )
            },
        ),
        (
            "select upper(country) as c, count(*) as uid from orders group by upper(country) having upper(country) > c",
            {"x-aggregate": ("aggregate", {"by": ["c"], "functions": {"uid_2": "COUNT(*)"}})},
        ),
        (
            "select country, count(*) as count from orders group by country",
            {"x": ("aggregate", {"by": ["country"], "functions": {"count": "COUNT(*)"}})},
        ),
        (
            "select o.id as a, p.id as b, count(*) as n from orders o join payments p on o.id = p.id "
            "group by o.id, p.id",
            {
                "x-join": ("join", {"on": ["o__id = p__id"], "how": "inner"}),
                "x-aggregate": ("aggregate", {"by": ["a"], "functions": {"n": "COUNT(*)"}}),
            },
        ),
    ],
)
def test_a_select_becomes_the_operators_that_say_the_same(pipeline, text, wanted):
    assert pipeline.sql(text, name="x").name == "x"
    assert operators(pipeline) == wanted


def test_statements_build_on_each_other_and_on_streams_declared_by_hand(pipeline):
    @pipeline.stage("orders")
    def good(orders):
        return orders

    pipeline.sql("select country, sum(amount) as spent from good group by country", name="totals")
    pipeline.sql("with some as (select * from totals where spent > 3) select country from some", name="rich")
    assert pipeline.streams[2:] == ["good", "totals", "rich-select", "rich"]
    assert pipeline.stream("totals").name == "totals"
    with pytest.raises(Invalid, match="there is no stream 'total'"):
        pipeline.stream("total")


def test_what_with_names_is_known_in_its_select_only_and_whatever_its_case(pipeline):
    def read(text: str) -> set[str]:
        name = f"x{len(pipeline.streams)}"
        pipeline.sql(text, name=name)
        return {source for stage in pipeline._stages if stage.name.startswith(name) for source in stage.inputs}

    assert read("with PAYMENTS as (select id from orders) select id from payments") & {"orders", "payments"} == {
        "orders"
    }
    within = "(with payments as (select id from orders) select id from payments)"
    both = read(f"select o.id from {within} o join payments p on o.id = p.id")
    assert both & {"orders", "payments"} == {"orders", "payments"}


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        ("to_date(x, 'yyyy-MM-dd')", "TO_DATE(x, 'yyyy-MM-dd')"),
        ("to_char(o.at, 'yyyy') /* year */", "TO_CHAR(at, 'yyyy')"),
        ("log10(x)", "LOG10(x)"),
        ("o.addr.city", "addr.city"),
        ("o.tags[0].name", "tags[0].name"),
        ("transform(xs, x -> x.a + o.b)", "TRANSFORM(xs, x -> x.a + b)"),
        ("timestampdiff(SECOND, o.a, b)", "TIMESTAMPDIFF(SECOND, a, b)"),
    ],
)
def test_an_expression_is_passed_to_spark_as_it_is_written(expression, written):
    """A parser that knows Spark's functions would write some of them another way, which means something else."""
    query = parse_query(f"select {expression} as x from orders o")
    node = query.tree.expressions[0].this
    assert StreamColumns(query, "o").text(node) == written
    joined = JoinedColumns(query, ["o"])
    if "o." in expression and "x" not in expression and "b)" not in expression:
        assert joined.text(node) == written.replace("addr", "`o__addr`").replace("tags", "`o__tags`").replace(
            "at,", "`o__at`,"
        )


def test_of_a_subquery_without_a_name_a_dot_is_a_field():
    query = parse_query("select addr.city as x from (select * from orders)")
    assert StreamColumns(query, "").text(query.tree.expressions[0].this) == "addr.city"


def test_what_a_statement_says_is_part_of_its_code(pipeline):
    """Otherwise a change of the text would not be seen."""
    functions = []
    for number in (1, 2, 2):
        pipeline.sql(f"select id + {number} as n from orders", name=f"x{len(functions)}")
        functions.append(pipeline._stages[-1].function)
    from tidegate.pipeline.graph.fingerprint import logic_of

    one, two, again = map(logic_of, functions)
    assert one != two
    assert two == again


@pytest.mark.parametrize(
    ("condition", "filtered"),
    [
        ("p.at >= o.at - INTERVAL '5' MINUTE AND p.at <= o.at + INTERVAL '1' HOUR", None),
        (
            "p.at > o.at - INTERVAL '5' MINUTE AND p.at < o.at + INTERVAL '1' HOUR",
            "(`p__at` > `o__at` - INTERVAL '5' MINUTE) AND (`p__at` < `o__at` + INTERVAL '1' HOUR)",
        ),
        (
            "o.at < p.at + INTERVAL '5' MINUTE AND O.at >= P.at - INTERVAL '1' HOUR",
            "(`o__at` < `p__at` + INTERVAL '5' MINUTE)",
        ),
        (
            "p.at + INTERVAL '5' MINUTE >= o.at AND o.at + INTERVAL '1' HOUR > p.at",
            "(`o__at` + INTERVAL '1' HOUR > `p__at`)",
        ),
        (
            "p.at >= o.at - INTERVAL '9' MINUTE AND p.at <= o.at + INTERVAL '1' HOUR AND p.at >= o.at - INTERVAL '5' "
            "MINUTE",
            None,
        ),
    ],
)
def test_times_between_two_comparisons_are_joined_within_them_as_with_between(pipeline, condition, filtered):
    """Not with rows that are kept permanently. `<` and `>` leave out the bounds, in a filter of the joined rows."""
    pipeline.sql(f"SELECT o.id, p.method FROM orders o JOIN payments p ON o.id = p.id AND {condition}", name="x")
    assert operators(pipeline) == {"x-join": ("join", NEAR)}
    (select,) = (each for each in pipeline._stages if each.name == "x")
    assert select.function.keywords["where"] == filtered


@pytest.mark.parametrize(
    "condition",
    [
        "p.at > o.at",
        "p.id >= o.id AND p.id <= o.id",
        "p.at > o.at AND p.at < o.at + INTERVAL '1' MONTH",
        "p.at > o.at AND o.at < p.at + INTERVAL '1' HOUR",
        "p.at > o.at + INTERVAL '1' HOUR AND p.at < o.at",
        "p.due > o.at AND p.due < o.at + INTERVAL '1' HOUR",  # by what is no event time, rows would be late
    ],
)
def test_comparisons_that_bound_no_time_on_both_sides_are_a_filter(pipeline, condition):
    pipeline.sql(f"SELECT o.id, p.method FROM orders o JOIN payments p ON o.id = p.id AND {condition}", name="x")
    assert operators(pipeline) == {"x-join": ("join", {"on": ["o__id = p__id"], "how": "inner"})}


def test_a_bound_of_time_that_is_left_out_is_refused_where_the_join_is_not_inner(pipeline):
    near = "p.at > o.at AND p.at <= o.at + INTERVAL '1' HOUR"
    for how in ("LEFT", "RIGHT", "FULL", "ANTI"):
        with pytest.raises(Invalid, match=f"this condition of a {how} JOIN: p.at > o.at"):
            pipeline.sql(f"SELECT o.id FROM orders o {how} JOIN payments p ON o.id = p.id AND {near}", name="x")
    inclusive = near.replace("> ", ">= ")
    pipeline.sql(f"SELECT o.id FROM orders o LEFT JOIN payments p ON o.id = p.id AND {inclusive}", name="x")
    assert operators(pipeline)["x-join"][1]["within"] == ["0 s", "3600 s"]


@pytest.mark.parametrize(
    ("text", "told", "help"),
    [
        ("select sum(amount) from orders", "line 1, column 8: an aggregate without a name", "write AS"),
        (
            "select country, sum(amount) + id as n from orders group by country",
            "no key and no aggregate: id",
            "GROUP BY",
        ),
        ("select addr.* from orders", "all fields of a column", "name them"),
        (
            "select * from (select addr.*, row_number() over (partition by id order by at desc) as n from orders) "
            "where n = 1",
            "a rank beside columns",
            "outside",
        ),
        ("select sum(id) as s, count(*) as S from orders", "two columns are called 's'", "AS"),
        ("select struct(*) as all from orders", "all columns within an expression", "name them"),
        ("select array(id, 2)[0] as first from orders", "line 1, column ", "a plainer way"),
        (
            "select id from orders where at > at - interval 1 day 2 hours",
            "line 1, column 54: it would not reach",
            "plainer",
        ),
        ("select id & 1 << 2 as x from orders", "line 1, column 15: it would not reach", "shiftleft"),
        ("select id from orders\nwhere cast(x as time) > y", "line 2, column 17: it would not reach", "plainer"),
        ("select -1::string as x from orders", "line 1, column 10: it would not reach", "CAST"),
        ("select count(*) as n from orders group by session_window(at, '5 minutes')", "this window has", "TUMBLE"),
        (
            "select count(*) as n from TABLE(SESSION(TABLE orders, DESCRIPTOR(at), INTERVAL '1' MINUTE)) where id > 1 "
            "group by window_start, window_end",
            "a WHERE that is behind the sessions",
            "TABLE good",
        ),
        (
            "select upper(country) as country, count(*) as n from TABLE(SESSION(TABLE orders PARTITION BY country, "
            "DESCRIPTOR(at), INTERVAL '1' MINUTE)) group by window_start, window_end, upper(country)",
            "PARTITION BY and the GROUP BY differ",
            "PARTITION",
        ),
        (
            f"select count(*) as n from {TUMBLE} group by window_start, window_end having max(window_end) > '2026'",
            "this computes with a window's bound",
            "around",
        ),
        ("select sum(id) as s, count(*) as s from orders", "two columns are called 's'", "AS"),
        ("select distinct upper(country) from orders", "an expression without a name", "AS"),
        ("select country from orders where sum(amount) > 3", "an aggregate in WHERE", "HAVING"),
        ("select id from orders where id > :least", "a parameter", "into the text"),
        ("select id, random() as r from orders", "a retry would compute", "column"),
        ("select id, localtimestamp as r from orders", "a retry would compute", "column"),
        ("select o.id from orders o join payments p on o.id = o.p.id", "without equal columns", "ON o.… = p.…"),
        (
            "select to_json(arrays_zip(o.xs, p.ys)) as z from orders o join payments p on o.id = p.id",
            "a name that the join changes",
            "around",
        ),
        ("select first(id) ignore nulls as f from orders", "this kind of aggregate has no operator", "process"),
        (f"select {'(' * 900}id{')' * 900} as x from orders", "", "divide it"),
        (
            "select a, sum(b) as s\nfrom orders group by a\norder by s",
            "line 3, column 10: ORDER",
            "order when you read",
        ),
        ("select *\n  from orderz", "line 2, column 8: there is no stream 'orderz'", "orders, payments"),
        ("select id,\n lag(id) over (partition by id order by at) as r from orders", "line 2, column ", "lag(amount)"),
        ("select id from orders limit 3", "LIMIT has no operator", "row_number"),
        ("select\n sum( from orders", "line 2, column ", "correct it there"),
        ("select id from orders where id in (select id from payments)", "a subquery", "JOIN it"),
        ("select id, now() as t from orders", "line 1, column 12: a retry would compute something else", "column"),
        ("insert into x select 1 from orders", "only SELECT becomes a stream", "one SELECT"),
        ("select id from orders; select id from orders", "2 statements", "once for each"),
        (
            "select o.id from orders o join payments p on o.id = p.id join orders o on o.id = p.id",
            "two sides are called 'o'",
            "AS",
        ),
        (
            "select o.id from orders o join payments p on o.id = p.id and p.at > o.at "
            "full join orders z on z.id = o.id",
            "a condition before a FULL JOIN",
            "a SELECT of its own",
        ),
        ("select id from orders o join payments p on o.id = p.id", "line 1, column 8: a column of either side", "o.id"),
        ("select o.id from orders o cross join payments p", "this kind of JOIN", "LEFT ANTI"),
        ("select o.id from orders o right anti join payments p on o.id = p.id", "this kind of JOIN", "LEFT ANTI"),
        ("select o.id from orders o, payments p where o.id = p.id", "this kind of JOIN", "JOIN"),
        ("select o.id from orders o natural join payments p", "METHOD has no operator", "ON"),
        ("select p.id from orders o semi join payments p on o.id = p.id", "a column of either side", "o.id"),
        (
            "select o.id from orders o join payments p on o.id = p.id and p.at > o.at "
            "right join orders z on z.id = o.id",
            "a condition before a RIGHT JOIN",
            "a SELECT of its own",
        ),
        (
            "select o.id from orders o join payments p on o.id = p.id join orders z using (id)",
            "a column of one of several sides",
            "ON",
        ),
        (f"select o.id from orders o join {TUMBLE} p on o.id = p.id", "a window that is joined", "in parentheses"),
        ("select o.id from orders o left join payments p on o.id = p.id and p.at > o.at", "LEFT JOIN", "with JOIN in"),
        ("select o.id from orders o right join payments p on o.id = p.id and p.at > o.at", "RIGHT JOIN", "row of p"),
        ("select o.id from orders o full join payments p on o.id = p.id and p.at > o.at", "FULL JOIN", "inner JOIN"),
        (
            "select o.id from orders o left join payments p on o.id = p.id and o.country = 'AT'",
            "this condition of a LEFT JOIN",
            "CASE WHEN o.country = 'AT' THEN key END",
        ),
        (
            "select o.id from orders o right join payments p on o.id = p.id and p.at > '2026'",
            "this condition of a RIGHT JOIN",
            "in a SELECT around p",
        ),
        (
            "select o.id from orders o full join payments p on o.id = p.id and o.country = 'AT'",
            "this condition of a FULL JOIN",
            "a filter would lose rows",
        ),
        ("select o.id from orders o join payments p on p.at > o.at", "without equal columns", "ON o.… = p.…"),
        (
            "select id, row_number() over (partition by id order by at) as n from orders",
            "a rank without a bound",
            "n <= 3",
        ),
        (
            "select * from (select *, row_number() over (order by at desc) as n from orders) where n = 1",
            "a key",
            "PARTITION",
        ),
        (
            "select * from (select *, row_number() over (partition by id order by at) as n from orders) where n < 3",
            "nulls first",
            "NULLS LAST",
        ),
        ("select country from orders having country > 'a'", "HAVING without GROUP BY", "WHERE"),
        (
            "select country, count(*) as n from orders group by country having amount > 1",
            "no key and no aggregate: amount",
            "GROUP BY it",
        ),
        ("select country, count(*) as n from orders group by country with cube", "CUBE has no operator", "SELECT each"),
        ("select count(*) as n from orders group by all", "ALL has no operator", "name the keys"),
        ("select count(*) as n from orders group by rollup(country)", "ROLLUP has no operator", "SELECT each"),
        (
            "select distinct n from (select country, id, count(*) as n from orders group by country, id)\n"
            "union all select distinct count(*) as n from orders group by country",
            "line 2, column ",
            "DISTINCT",
        ),
        ("select id from orders tablesample (10 percent)", "SAMPLE has no operator", "other rows"),
        ("select id from (select id from orders) tablesample (10 percent)", "SAMPLE has no operator", "other rows"),
        ("select id from orders version as of 3", "AS OF has no operator", "source"),
        ("(select id from orders) limit 3", "LIMIT has no operator", "row_number"),
        ("select a from (select id from orders) as t(a)", "COLUMNS has no operator", "AS"),
        ("with t(a) as (select id from orders) select a from t", "COLUMNS has no operator", "AS"),
        ("select histogram_numeric(amount, 3) as h from orders", "histogram_numeric cannot be kept", "process"),
        ("select kurtosis(amount) as k from orders", "line 1, column 8: kurtosis cannot be kept", "process"),
        ("select id, monotonically_increasing_id() as n from orders", "a retry would compute", "column"),
        ("select id, unix_timestamp() as n from orders", "a retry would compute", "column"),
        ("select id, localtimestamp() as n from orders", "a retry would compute", "column"),
        (
            "select * from (select *, row_number() over (partition by id order by at desc) as n from orders limit 9) "
            "where n = 1",
            "LIMIT has no operator",
            "row_number",
        ),
        (
            "select * from (select distinct *, row_number() over (partition by id order by at desc) as n from orders) "
            "where n = 1",
            "a rank beside columns",
            "outside",
        ),
        (
            "select r.id from (select *, row_number() over (partition by id order by at desc) as n from orders) r "
            "join payments p on r.id = p.id where r.n = 1",
            "a rank without a bound",
            "n <= 3",
        ),
        (
            "select * from (select *, row_number() over (partition by id order by at desc) as n from orders "
            "where at < now()) where n = 1",
            "a retry would compute",
            "column",
        ),
        ("select id from orders union select id from payments", "a UNION of another kind", "UNION ALL"),
        ("select id from orders union all select * from payments", "without names", "name the columns"),
        ("select id, country as c from orders union all select id, method from payments", "other columns", "id, c"),
        ("select id from orders union all select id from payments order by id", "ORDER has no operator", "when you"),
        ("select upper(country) as c, count(*) as n from orders group by c", "no column of the stream", "expression"),
        (f"select country, count(*) as n from {TUMBLE} group by country", "a window is not grouped by", "window_start"),
        (f"select * from {TUMBLE}", "* beside GROUP BY", "name the columns"),
        (
            "select count(*) as n from TABLE(SESSION(TABLE orders PARTITION BY id, DESCRIPTOR(at), "
            "INTERVAL '1' MINUTE)) group by window_start, window_end",
            "PARTITION BY and the GROUP BY differ",
            "leave out",
        ),
        ("select distinct * from orders", "DISTINCT * has no key", "name the columns"),
        ("select distinct on (id) id from orders", "ON has no operator", "row_number"),
        ("select o.id from orders o outer join payments p on o.id = p.id", "this kind of JOIN", "LEFT"),
        ("select id from orders@v1", "this is no name", "AS"),
        (
            "with t as (select *, row_number() over (partition by id order by at desc) as m from orders) "
            "select * from (select *, row_number() over (partition by id order by m desc) as n from t) where n = 1",
            "a rank without a bound",
            "n <= 3",
        ),
        (
            "select * from (select *, row_number() over (partition by id order by at desc rows between 3 preceding "
            "and current row) as n from orders) where n = 1",
            "SPEC has no operator",
            "leave it out",
        ),
        (
            "select * from (select *, row_number() over (partition by id order by at desc) as n from orders) "
            "where n <= '²'",
            "a bound of a rank that is not its first rows",
            "n <= 3",
        ),
        (
            "select upper(o.country) as country, count(*) as n from orders o group by o.country, upper(o.country)",
            "two keys are called 'country'",
            "AS",
        ),
        (
            "select upper(country) as Country, count(distinct country) as n from orders group by upper(country)",
            "a key that is computed has this name",
            "differently",
        ),
        ("select 'O''Brien' as name from orders", "two texts beside each other", "\\'"),
        ("select count(o.*) as n from orders o", "all columns within an expression", "name them"),
        ("select id from orders where at < timestamp 'now'", "a retry would compute", "column"),
        ("select id from orders where at < cast(' Today ' as date)", "a retry would compute", "column"),
        ("select id, current_database() as d from orders", "a retry would compute", "column"),
        (
            f"select window_start as ws, count(*) as n from {TUMBLE} group by window_start, window_end",
            "this computes with a window's bound, or renames it",
            "around",
        ),
        (
            f"select country, count(*) as n from {TUMBLE} where window_end > '2026' "
            "group by window_start, window_end, country",
            "this computes with a window's bound",
            "around",
        ),
        (
            "with a as (select id from orders), A as (select id from payments) select id from a",
            "two parts of WITH have this name",
            "differently",
        ),
        ("select p.x from orders o", "'p' is not what FROM names", "o.x"),
        (
            "select country, count(*) as n from orders group by grouping sets ((country), ())",
            "GROUPING SETS has no operator",
            "UNION ALL",
        ),
        ("select country, count(*) as n from orders group by cube(country)", "CUBE has no operator", "UNION ALL"),
        (
            "select o.id from orders o join payments for system_time as of o.at as p on o.id = p.id",
            "line 1, column 63: AS OF has no operator",
            "orders.join(rates, on=…, as_of=True) in place of FOR SYSTEM_TIME AS OF",
        ),
        (
            "select * from (select *, row_number() over (partition by id order by at desc) as n from orders) "
            "where n = 2",
            "column 103: a bound of a rank that is not its first rows: WHERE n = 2",
            "WHERE n <= 3 AND …",
        ),
        (
            "select country, count(*) as n from orders group by country "
            "having country in (select method from payments)",
            "line 1, column 86: a subquery",
            "LEFT SEMI JOIN",
        ),
        ("select id, proctime() as p from orders", "the time of processing, which a retry", 'time="processing"'),
        (
            f"select o.id from orders o join {TUMBLE} p on o.id = p.id",
            "joined or ranked by its rows: TABLE(TUMBLE(TABLE orders, …)) AS p",
            "in parentheses",
        ),
        ("select id from some_rows(orders)", "a function in place of a stream: SOME_ROWS(orders)", "name a stream"),
        (
            "select count(*) as n from tumble(orders, at, interval '1' minute) group by window_start",
            "a function in place of a stream: TUMBLE",
            "FROM TABLE(TUMBLE(TABLE",
        ),
        (
            "select count(*) as n\nfrom table(cumulate(table orders, descriptor(at), interval '1' minute, "
            "interval '1' hour)) group by window_start, window_end",
            "line 2, column 6: CUMULATE has no operator",
            "use TUMBLE",
        ),
        (
            "select count(*) as n from table(tumble(table orders, at)) group by window_start, window_end",
            "line 1, column 27: this TUMBLE has another form than its own",
            "write it so",
        ),
        (
            "select id, lag(amount) over (partition by id order by at) as r from orders",
            "line 1, column 12: LAG OVER rows has no operator",
            "own over(…)",
        ),
        (
            "select sum(amount) over (partition by id order by at) as r from orders",
            "SUM OVER rows has no operator",
            "own over(…)",
        ),
        (
            "select ntile(4) over (partition by id order by at) as r from orders",
            "line 1, column 8: NTILE OVER rows has no operator",
            "in `process`",
        ),
        (
            "select country, min(distinct id) as m from orders group by country",
            "min of distinct values is min of all",
            "leave out DISTINCT",
        ),
        (
            "select count(*) as n from orders group by country, tumble(at, interval '1' minute)",
            "line 1, column 52: a window as a function",
            "FROM TABLE(TUMBLE(TABLE",
        ),
        (
            "select tumble_start(at, interval '1' minute) as s, count(*) as n from orders group by country",
            "line 1, column 8: a window as a function",
            "GROUP BY window_start, window_end",
        ),
    ],
)
def test_what_does_not_map_is_refused_with_its_place(pipeline, text, told, help):
    before = list(pipeline._stages)
    with pytest.raises(Invalid) as refused:
        pipeline.sql(text, name="x")
    assert refused.value.reason == "BAD_SQL"
    assert told in str(refused.value)
    assert help in refused.value.help
    assert pipeline._stages == before, "nothing is declared by a statement that is refused"


def test_what_an_operator_refuses_is_told_with_its_place(pipeline):
    many = "select country, id, count(*) as n from orders group by country, id"
    best = pipeline.sql(f"select country, max(n) as most\nfrom ({many}) group by country", name="x")
    best.sink("x", DeltaUpsert("tables/x", keys=["country"]))
    paid = pipeline.sql(
        "select o.country, p.method\nfrom orders o\n  join payments p on o.id = p.id\n"
        "    and p.tea between o.at and o.at + interval '1' hour",
        name="y",
    )
    paid.sink("y", DeltaAppend("tables/y"))
    ranked = pipeline.sql(
        "with few as (\n  select country, id, count(*) as n from orders group by country, id)\n"
        "select c.country, c.n, p.method from payments p join (\n  select id, country, n from (\n"
        "    select *, row_number() over (partition by country order by n desc) as place from few) where place <= 3\n"
        ") c using (id)",
        name="z",
    )
    ranked.sink("z", DeltaUpsert("tables/z", keys=["country", "n"]))
    few = "with few as (select id, country from orders)\nselect country, count(*) as n from few group by country"
    pipeline.sql(few, name="behind").sink("behind", DeltaUpsert("tables/behind", keys=["country"]))
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    assert "aggregate 'x' (SQL, line 1, column 8): " in refused.value.what
    places = {"x": "1, column 8", "x-aggregate": "2, column 14", "y-join": "3, column 22"}
    places |= {
        "z-aggregate": "2, column 10",
        "z-top": "5, column 15",
        "z-join": "6, column 12",
        "behind": "2, column 8",
    }
    found = {node.name: node.written_at for node in pipeline._stages if isinstance(node, OperatorNode)}
    assert found == {name: f"SQL, line {place}" for name, place in places.items()}


PLACED = (
    "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY window_start, window_end ORDER BY n DESC) AS place FROM "
    f"(SELECT {{}} FROM {TUMBLE} GROUP BY window_start, window_end, country)) WHERE place <= 3"
)


@pytest.mark.parametrize("columns", ["country, window_start, window_end, count(*) AS n", "*, count(*) + 1 AS n"])
def test_a_rank_of_a_window_that_replaces_rows_names_what_is_between_both(pipeline, columns):
    """The order of columns decides it, since another one needs a stage: nothing else would tell."""
    columns = columns.replace("*, ", "window_start, window_end, country, ", 1) if columns[0] == "*" else columns
    pipeline.stream("payments").sink("payments", DeltaAppend("payments"))
    pipeline.sql(PLACED.format(columns), name="x").sink("x", DeltaAppend("x"))
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    assert "closed windows of 'x-window' straight from it, but 'x-select' is between them" in refused.value.what
    assert "SELECT window_start, window_end, the other keys in the order of GROUP BY" in refused.value.what


def test_a_rank_of_a_windows_own_columns_only_adds_rows(pipeline):
    pipeline.stream("payments").sink("payments", DeltaAppend("payments"))
    text = PLACED.format("window_start, window_end, country, count(*) AS n").replace("*", "country, place", 1)
    pipeline.sql(text, name="x").sink("x", DeltaAppend("x"))
    assert pipeline.graph()


def test_a_rank_of_rows_that_replaces_rows_is_not_said_to_be_of_a_window(pipeline):
    pipeline.stream("payments").sink("payments", DeltaAppend("payments"))
    text = f"SELECT * FROM {RANKED.format('amount DESC')} WHERE n <= 3"
    pipeline.sql(text, name="x").sink("x", DeltaAppend("x"))
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    assert "straight from it" not in refused.value.what


RANKED = "(SELECT *, row_number() OVER (PARTITION BY country ORDER BY {}) AS n FROM orders)"


@pytest.mark.parametrize(
    "text",
    [
        "SELECT DISTINCT country FROM orders",
        "SELECT country, count(DISTINCT id) AS n FROM orders GROUP BY country",
        "SELECT o.id, p.method FROM orders o JOIN payments p ON o.id = p.id",
        f"SELECT id, n FROM {RANKED.format('amount DESC')} WHERE n <= 3",
        f"SELECT id FROM {RANKED.format('at DESC')} WHERE n = 1",
        "SELECT country, count(*) AS n FROM (SELECT DISTINCT country, id FROM orders) GROUP BY country",
    ],
)
def test_state_ttl_is_that_of_each_operator_that_would_keep_rows_permanently(pipeline, text):
    pipeline.sql(text, name="x", state_ttl="30 days", ttl_time="event")
    told = [options for _, options in operators(pipeline).values()]
    assert told
    assert all(options["state_ttl"] == "30 days" and options["ttl_time"] == "event" for options in told)


def test_of_a_rank_that_is_bounded_as_well_any_rows_can_be_asked_for(pipeline):
    """As the help says where there is no bound."""
    pipeline.sql(f"SELECT * FROM {RANKED.format('at DESC')} WHERE n <= 3 AND n = 2", name="x")
    assert operators(pipeline)["x-top"][1]["n"] == 3


def test_state_ttl_where_nothing_is_kept_permanently_is_refused(pipeline):
    text = f"SELECT country, count(*) AS n FROM {TUMBLE} GROUP BY window_start, window_end, country"
    for each in (text, "SELECT id FROM orders WHERE amount > 3"):
        with pytest.raises(Invalid, match="SQL 'x' has state_ttl='1 day', and nothing in it is kept permanently"):
            pipeline.sql(each, name="x", state_ttl="1 day")
    assert pipeline.streams == ["orders", "payments"]


def test_state_ttl_where_rows_are_taken_back_is_refused_with_its_place(pipeline):
    inner = "SELECT id, max(country) AS country FROM orders GROUP BY id"
    text = f"SELECT country, count(*) AS n FROM ({inner}) GROUP BY country"
    pipeline.sql(text, name="x", state_ttl="1 day").sink("made", DeltaUpsert("made", keys=["country"]))
    with pytest.raises(Invalid, match=r"\(SQL, line 1, column .*state_ttl: a row that is retracted after its key"):
        pipeline.graph()


def test_the_parser_is_an_extra(pipeline, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sqlglot", None)
    with pytest.raises(Invalid, match="needs sqlglot") as refused:
        pipeline.sql("select id from orders", name="x")
    assert "tidegate[sql]" in refused.value.help
