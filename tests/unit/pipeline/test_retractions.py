"""By which key rows of a changelog are told apart, and which sinks get an operator in front that nobody declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.declarations import one_problem
from tidegate import Pipeline
from tidegate.checkpoint.compatibility import growing, unordered
from tidegate.operators.retractions.deletes import RememberedDeletes
from tidegate.operators.retractions.key import key_of, key_renamed, keys_contain
from tidegate.operators.retractions.materializer import Materializer
from tidegate.pipeline.graph.graph import Graph
from tidegate.sinks import DeltaAppend, DeltaUpsert, KafkaTopic, PostgresUpsert
from tidegate.sources import Files

Build = Callable[[Any, Any], Any]


def declared(build: Build, *keys: str, sink: Any = None) -> Pipeline:
    pipeline = Pipeline("p")
    rows = pipeline.source("rows", Files("rows/*.json", schema="id long, k string, v long, at timestamp"))
    other = pipeline.source("other", Files("other/*.json", schema="id long, k string, w long"))
    build(rows, other).sink("made", sink or DeltaUpsert("made", keys=keys))
    other.sink("others", DeltaAppend("others"))
    return pipeline


def latest(rows: Any, **options: Any) -> Any:
    return rows.latest(by="id", order_by="at", uid=f"newest-{rows.name}", **options)


def python_stage(stream: Any) -> Any:
    @stream.pipeline.stage(stream)
    def passed(rows: Any) -> Any:
        return rows

    return passed


def stands_in_front(graph: Graph) -> str:
    """What stands in front of the sink: "" nothing, "?" what only a plan will tell."""
    implied = [stage.operator for stage in graph.operators if stage.spec.is_implied]
    (operator,) = implied or [None]
    return operator.kind + ("?" if not getattr(operator, "certain", True) else "") if operator is not None else ""


NONE, COUNTS, PERHAPS = "", "materializer", "materializer?"


@pytest.mark.parametrize(
    ("build", "keys", "stands"),
    [
        (lambda rows, _: latest(rows), ["id"], NONE),
        (lambda rows, _: latest(rows), ["id", "k"], NONE),
        (lambda rows, _: latest(rows), ["k"], COUNTS),
        (lambda rows, _: latest(rows).where("v > 0"), ["id"], NONE),
        (lambda rows, _: latest(rows).select("id AS number", "k"), ["number"], NONE),
        (lambda rows, _: latest(rows).select("ID", "v * 2 AS w"), ["ID"], NONE),
        (lambda rows, _: latest(rows).select("*", "`id` other"), ["other"], NONE),
        (lambda rows, _: latest(rows).select("v AS id", "k"), ["id"], COUNTS),
        (lambda rows, _: latest(rows).select("k"), ["k"], COUNTS),
        (lambda rows, _: latest(rows).select("* EXCEPT (v, k)"), ["id"], NONE),
        (lambda rows, _: latest(rows).select("* except(v, `id`)"), ["k"], COUNTS),
        (lambda rows, _: rows.top_n(1, by="k", order_by="v", uid="t").select("* EXCEPT (rank)"), ["k"], NONE),
        (lambda rows, _: latest(rows).select("id", "explode(array(k, 'x')) AS k"), ["id"], PERHAPS),
        (lambda rows, _: python_stage(latest(rows)), ["id"], PERHAPS),
        (lambda rows, _: python_stage(latest(rows)).aggregate(by="k", uid="a", n="count(*)"), ["k"], NONE),
        (
            lambda rows, other: latest(rows).select("id").union(latest(other.select("*", "id AS at")).select("id")),
            ["id"],
            COUNTS,
        ),
        (lambda rows, _: rows.aggregate(by=["id", "k"], uid="a", n="count(*)"), ["k", "id"], NONE),
        (lambda rows, _: rows.aggregate(by=["id", "k"], uid="a", n="count(*)"), ["k"], COUNTS),
        (lambda rows, _: rows.aggregate(by=[], uid="a", n="count(*)"), ["n"], NONE),
        (lambda rows, _: rows.aggregate(by="k", uid="a", n="count(*)").every(3, uid="e"), ["k"], NONE),
        (lambda rows, _: rows.top_n(2, by="k", order_by="v", uid="t"), ["k", "rank"], NONE),
        (lambda rows, _: rows.top_n(2, by="k", order_by="v", uid="t"), ["k"], COUNTS),
        (lambda rows, _: rows.top_n(2, by="k", order_by="v", rank="rank", uid="t"), ["k", "rank"], COUNTS),
        (lambda rows, other: rows.join(other.select("id", "w"), on="id", how="left", uid="j"), ["id"], COUNTS),
        (
            lambda rows, other: rows.deduplicate(by="id", uid="d").join(
                other.aggregate(by="k", uid="a", n="count(*)"), on="k", how="left", uid="j"
            ),
            ["id"],
            NONE,
        ),
        (
            lambda rows, other: rows.aggregate(by="k", uid="a", n="count(*)").join(
                other.latest(by="id", order_by="w", uid="l"), on="k", how="right", uid="j"
            ),
            ["id"],
            NONE,
        ),
        (
            lambda rows, other: rows.aggregate(by="k", uid="a", n="count(*)").join(
                other.latest(by="id", order_by="w", uid="l"), on="k", how="left", uid="j"
            ),
            ["id"],
            COUNTS,
        ),
        (
            lambda rows, other: rows.join(other.aggregate(by="k", uid="a", n="count(*)"), on="k", uid="j"),
            ["id", "k"],
            COUNTS,
        ),
        (
            lambda rows, other: latest(rows).join(
                other.aggregate(by="id", uid="a", n="count(*)"), on="id", prefix="p_", uid="j"
            ),
            ["id"],
            NONE,
        ),
        (
            lambda rows, other: latest(rows).join(
                other.latest(by="id", order_by="w", uid="l"), on="k", prefix="p_", uid="j"
            ),
            ["id", "p_id"],
            PERHAPS,
        ),
        (
            lambda rows, other: latest(rows).join(
                other.aggregate(by="id", uid="a", n="count(*)"), on="id", how="anti", uid="j"
            ),
            ["id"],
            NONE,
        ),
        (
            lambda rows, other: latest(rows).join(
                other.aggregate(by="id", uid="a", n="count(*)"), on="id", how="full", uid="j"
            ),
            ["id"],
            COUNTS,
        ),
        (lambda rows, _: rows.select("id", "k"), ["k"], NONE),
    ],
)  # fmt: skip
def test_a_sink_whose_keys_do_not_contain_those_of_the_changelog_gets_a_materializer(
    build: Build, keys: list[str], stands: str
) -> None:
    assert stands_in_front(declared(build, *keys).graph()) == stands


@pytest.mark.parametrize(
    ("sink", "stands"),
    [
        (PostgresUpsert("made", connection="shop", keys=["k"]), COUNTS),
        (KafkaTopic("made", servers="one:9092", key=["k"]), COUNTS),
        (DeltaAppend("made", changelog=True), NONE),
    ],
    ids=lambda each: getattr(each, "kind", each),
)
def test_every_sink_that_goes_by_keys_gets_one(sink: Any, stands: str) -> None:
    assert stands_in_front(declared(lambda rows, _: latest(rows), sink=sink).graph()) == stands


def test_check_and_the_graph_name_it_and_what_it_keeps() -> None:
    graph = declared(lambda rows, _: latest(rows).select("k", name="few"), "k").graph()
    (stage,) = [stage for stage in graph.operators if isinstance(stage.operator, Materializer)]
    assert (stage.name, stage.inputs, graph.sinks["made"].input) == ("made-materializer-k", ("few",), stage.name)
    assert "state.made-materializer-k.held" in graph.tables
    (note,) = [line for line in growing(graph) if line.startswith("materializer")]
    assert note == (
        "materializer 'made-materializer-k': sink 'made' has the keys k, but the key of 'few' is unknown: so all "
        "current rows are kept as state, and one row of each key is written; with keys that contain those of the "
        "stream, no state would be kept"
    )


def test_what_forgets_rows_cannot_be_in_front_of_one() -> None:
    def build(rows: Any, _: Any) -> Any:
        return latest(rows, state_ttl="1 day").select("k", name="few")

    told = one_problem(declared(build, "k"))
    assert "sink 'made' has the keys k, which are not unique among the rows of 'few'" in told
    assert "rows of newest-rows expire (state_ttl) without retractions" in told
    assert stands_in_front(declared(lambda rows, _: latest(rows, state_ttl="1 day"), "id").graph()) == NONE


@pytest.mark.parametrize(
    ("options", "stands"),
    [
        ({"order_by": ["at"], "delete_when": "v < 0"}, "deletes"),
        ({"order_by": ["at"]}, NONE),
        ({"delete_when": "v < 0"}, NONE),
    ],
)
def test_a_sink_that_orders_rows_and_removes_some_gets_what_remembers_removals(
    options: dict[str, Any], stands: str
) -> None:
    for sink in (
        DeltaUpsert("made", keys=["id"], **options),
        PostgresUpsert("made", connection="shop", keys=["id"], **options),
    ):
        graph = declared(lambda rows, _: rows.where("id > 0"), sink=sink).graph()
        assert stands_in_front(graph) == stands
        notes = [line for line in growing(graph) if "'made'" in line]
        assert bool(notes) == bool(stands)


def test_other_keys_or_another_order_of_a_sink_are_another_operator() -> None:
    names = set()
    for by, order in ((["id"], ["k", "at"]), (["id", "k"], ["at"]), (["id"], ["at"]), (["Größe"], ["at"])):
        sink = DeltaUpsert("made", keys=by, order_by=order, delete_when="v < 0")
        graph = declared(lambda rows, _: rows.where("id > 0"), sink=sink).graph()
        names |= {stage.name for stage in graph.operators if isinstance(stage.operator, RememberedDeletes)}
    assert len(names) == 4
    assert "made-deletes-id-by-at" in names


def test_a_key_is_followed_through_other_names() -> None:
    key = key_renamed(key_of(["id", "k"]), {"ID": ["a", "B"], "k": ["k"], "v": ["id"]})
    assert key is not None
    assert keys_contain(["b", "K"], key)
    assert not keys_contain(["id", "k"], key)
    assert key_renamed(key, {"a": ["a"]}) is None
    assert keys_contain([], key_of([])), "there is one row at most"
    assert not keys_contain(["id"], None)


# -- the first row of a key ----------------------------------------------------------------------------------


def test_check_says_where_nothing_tells_which_row_of_a_key_is_the_first() -> None:
    (told,) = unordered(
        declared(lambda rows, _: rows.deduplicate(by="id", uid="once"), sink=DeltaAppend("made")).graph()
    )
    assert told.startswith("deduplicate 'once' keeps one row of each id, from the first checkpoint that has one")
    assert 'top_n(1, by="id", order_by="…")' in told


@pytest.mark.parametrize(
    "build",
    [
        lambda rows, _: rows.deduplicate(by="id", event_time="at"),
        lambda rows, _: rows.select("id", "upper(k) AS k").deduplicate(by=["k", "id"]),
    ],
    ids=["event time", "all of its columns"],
)
def test_nothing_is_said_where_that_is_told_or_all_rows_of_a_key_are_alike(build: Build) -> None:
    assert unordered(declared(build, sink=DeltaAppend("made")).graph()) == []
