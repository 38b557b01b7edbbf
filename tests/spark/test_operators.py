"""Every operator on real Spark: the same tables however input is cut and attempts crash; odd input; changed code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn, turn_of
from tests.spark.graphs import GRAPHS
from tests.spark.graphs_in_order import IN_ORDER
from tests.spark.graphs_of_joins import JOINS
from tests.spark.graphs_of_layers import LAYERS
from tests.spark.graphs_of_shared_keys import SHARED
from tests.spark.random_cuts import CutStory, Graph, counted, told
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline
from tidegate.errors import Invalid
from tidegate.sinks import DeltaAppend, DeltaUpsert

pytestmark = in_turn(seconds=30)


START = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


FAULTS = ("crash", "twice", "early", "crash", "twice", "early", "crash", "twice")
CUT = list(zip((*GRAPHS, *JOINS, *IN_ORDER, *LAYERS, *SHARED), FAULTS, strict=True))


def story_of(graph: Graph, **options: Any) -> CutStory:
    """A short story in which every table gets rows."""
    story = replace(CutStory.of(graph, seed=8 if graph.name == "layered" else 7, **options), in_jobs=False)
    assert all(graph.expected(story.events).values())
    return story


@pytest.mark.parametrize(("graph", "fault"), turn_of(CUT, 8), ids=str)
def test_tables_are_right_however_the_events_are_cut_and_attempts_crash(
    tmp_path: Path, spark: Any, graph: Graph, fault: str
) -> None:
    """A short form of `python -m tests.spark.random_cuts`, which tells many more stories."""
    story = story_of(graph, checkpoints=2, finishes=False)
    story.faults[:] = [fault, ""]
    assert told(graph, story, story.run(graph, tmp_path, spark)) == []


@pytest.mark.parametrize("graph", turn_of([graph for graph, _ in CUT], 8), ids=str)
def test_a_pipeline_that_finishes_by_itself_gives_all_that_has_waited(tmp_path: Path, spark: Any, graph: Graph) -> None:
    """The checkpoint that would be the last one is aborted; the one after it is."""
    story = story_of(graph, checkpoints=3, finishes=True)
    story.faults[:] = ["crash", "", "abort"]
    assert told(graph, story, story.run(graph, tmp_path, spark)) == []


# -- odd input -----------------------------------------------------------------------------------------

ODD = (
    "`a.b` string, `q``t` long, `größe` decimal(9,2), `x` struct<`y.z`: long, `m`: map<string, array<long>>>, "
    "at timestamp_ntz"
)
OTHER = "`a.b` string, `q``t` long, `o.k` double, `then` date"


def odd(pipeline: Pipeline) -> None:
    """Every operator over names that SQL must quote, and types that have no order or no equality."""
    rows = sources(pipeline, ODD, "rows", event_time="at", watermark="3 h")
    other = sources(pipeline, OTHER, "other", event_time="then")
    by = ["a.b", "q`t"]
    sums = {"s.s": "sum(`größe`)", "x`s": "max(x.`y.z`)", "d": "count(distinct `q``t`, `größe`)", "m": "avg(`größe`)"}

    def put(stream: Any, name: str, *more: str, once: bool = False, late: str = "") -> None:
        stream.sink(name, DeltaAppend(f"tables/{name}") if once else DeltaUpsert(f"tables/{name}", keys=[*by, *more]))
        if late:
            stream[late].sink(f"{name}-late", DeltaAppend(f"tables/{name}-late"))

    put(rows.deduplicate(by=by, uid="ever"), "ever", once=True)
    put(rows.deduplicate(by=by, within="1 h", uid="once"), "once", once=True, late="late")
    put(rows.aggregate(by=by, uid="sums", **sums), "sums")
    put(rows.aggregate(by=by, uid="lifted", least="min(`größe`)"), "lifted")
    put(rows.latest(by=by, order_by=["at"], uid="latest"), "latest")
    put(rows.top_n(1, by=by, order_by="größe desc", uid="top"), "top", "rank")
    put(rows.window(tumbling="1 h", by=by, emit="update", uid="live", **sums), "live", "window_start")
    put(rows.window(session="1 h", by=by, uid="session", **sums), "session", once=True)
    put(
        rows.over(by=by, rows=2, uid="over", **{"l.l": "lag(`größe`)", "t`t": "sum(`größe`)"}),
        "over",
        once=True,
        late="late",
    )
    put(rows.window(count=1, by=by, uid="ones", **sums), "ones", once=True, late="late")
    put(rows.join(other, on=by, within="1 day", how="full", uid="near"), "near", once=True, late="late-left")
    put(rows.join(other, on=by, how="left", uid="both").aggregate(by=by, uid="pairs", n="count(*)"), "pairs")

    @rows.process(by=by, state="n long", output="`a.b` string, `n.n` long", in_order=True, uid="seen")
    def seen(key: Row, rows: Any, state: Any, timers: Any) -> Any:
        state.n = (state.n or 0) + rows.num_rows
        return [{"a.b": key["a.b"], "n.n": state.n}]

    put(seen, "seen", once=True, late="late")

    @rows.process(by=by, state="n long", output="`a.b` string, `o.k` double", other=other, in_order=True, uid="two")
    def two(key: Row, rows: Any, others: Any, state: Any, timers: Any) -> Any:
        assert others.column_names == ["a.b", "q`t", "o.k", "then"]
        return [{"a.b": row["a.b"], "o.k": row["o.k"]} for row in others.to_pylist() if row["q`t"] == key["q`t"]]

    put(two, "two", once=True, late="late")


def odd_row(key: str | None, number: int | None, size: str | None, hour: int, **entries: list[int]) -> Row:
    at = (START + timedelta(hours=hour)).replace(tzinfo=None).isoformat()
    return {"a.b": key, "q`t": number, "größe": size, "x": {"y.z": number, "m": entries}, "at": at}


def test_odd_names_and_types_and_empty_checkpoints_are_nothing_special(tmp_path: Path, spark: Any) -> None:
    play = SmallPipeline(tmp_path, spark, odd)
    for source in ("rows", "other"):
        (tmp_path / "landing" / source).mkdir(parents=True)
    play.checkpoint()  # the very first has no rows
    assert play.rows("tables/sums") == []
    play.feed([odd_row("A", 1, "1.50", 0, p=[1], q=[]), odd_row("a", 1, "2.25", 0), odd_row(None, None, None, 1)])
    play.feed([{"a.b": "A", "q`t": 1, "o.k": 0.5, "then": "2026-01-01"}], "other")
    play.checkpoint()
    play.feed([odd_row("A", 1, "1.50", 0, q=[], p=[1]), odd_row("A", 1, "0.75", 2, p=[1])])  # the first is a copy
    play.feed([odd_row("end", 0, "0", 99)])
    play.feed([{"a.b": "end", "q`t": 0, "o.k": None, "then": "2026-01-09"}], "other")
    play.checkpoint()
    play.feed([odd_row("late", 1, "7", 0), {**odd_row("none", 1, "7", 0), "at": None}])
    counts = play.ack(play.checkpoint()).stats.counts
    for name in ("once", "near", "seen", "session", "over", "ones", "two"):
        assert counts[name] == {"late": 1, "without_time": 1}
    for name in ("once", "near", "seen", "over", "ones", "two"):
        assert sorted(row["a.b"] for row in play.rows(f"tables/{name}-late")) == ["late", "none"]

    def column(table: str, name: str, key: Any = "A") -> list[Any]:
        return sorted((row[name] for row in play.rows(f"tables/{table}") if row["a.b"] == key), key=str)

    assert column("ever", "größe") == [Decimal("1.50")]
    assert column("once", "größe") == [Decimal("0.75"), Decimal("1.50")]
    assert (column("sums", "s.s"), column("sums", "x`s"), column("sums", "d")) == ([Decimal("3.75")], [1], [2])
    assert column("sums", "m") == [Decimal("1.250000")]
    assert column("sums", "s.s", None) == [None]
    assert column("lifted", "least") == [Decimal("0.75")]
    assert column("latest", "größe") == [Decimal("0.75")]
    assert column("top", "größe") == [Decimal("1.50")]
    assert column("live", "s.s") == [Decimal("0.75"), Decimal("3.00")]
    assert column("session", "s.s") == [Decimal("0.75"), Decimal("3.00")]
    assert column("near", "o.k") == [0.5, 0.5, 0.5]
    assert column("near", "o.k", None) == [None]
    assert column("pairs", "n") == [3]
    assert column("seen", "n.n") == [2, 3]
    assert column("over", "l.l") == [Decimal("1.50"), Decimal("1.50"), None]
    assert column("over", "t`t") == [Decimal("1.50"), Decimal("2.25"), Decimal("3.00")]
    assert column("ones", "s.s") == [Decimal("0.75"), Decimal("1.50"), Decimal("1.50")]
    assert column("two", "o.k") == [0.5]


# -- input that cannot be ------------------------------------------------------------------------------


def refusal(folder: Path, spark: Any, build: Callable[[Any, Any], Any], schema: str = "") -> Invalid:
    """What is said of an operator over two streams."""

    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, schema or "k string, v long, m map<string, long>, at timestamp", event_time="at")
        other = sources(pipeline, "k long, w long, at timestamp", "other", event_time="at")
        build(rows, other).sink("told", DeltaUpsert("tables/told", keys=["k"]))
        other.sink("other", DeltaAppend("tables/other"))

    play = SmallPipeline(folder / str(len(list(folder.iterdir()))), spark, declare)
    play.feed([{"k": "a"}])
    play.feed([{"k": 1}], "other")
    with pytest.raises(Invalid) as caught:
        play.checkpoint()
    return caught.value


def test_unfit_input_is_refused_with_the_operator_what_was_expected_and_what_to_do(tmp_path: Path, spark: Any) -> None:
    def speak(*_: Any) -> None:
        """Never called."""

    given: dict[str, Callable[[Any, Any], Any]] = {
        "'u': by names 'c', which its input does not have": lambda rows, _: rows.deduplicate(by="c", uid="u"),
        "'u': by names what has no plain equality: 'm' is map": lambda rows, _: rows.latest(
            by="m", order_by="v", uid="u"
        ),
        "'u': order_by has 'v desc'": lambda rows, _: rows.latest(by="k", order_by="v desc", uid="u"),
        "'u': order_by names 'w'": lambda rows, _: rows.top_n(2, by="k", order_by="w desc", uid="u"),
        "'u': by names 'K'": lambda rows, _: rows.aggregate(by="K", uid="u", n="count(*)"),
        "'u': Spark refuses its expressions": lambda rows, _: rows.window(tumbling="1 h", by="k", uid="u", n="sum(m)"),
        "'k' is string on the left, bigint on the right": lambda rows, other: rows.join(
            other, on="k", within="1 h", uid="u"
        ),
        "'u': order_by names what has no order: 'm'": lambda rows, _: rows.process(
            by="k", state="n long", output="k string", order_by="m", uid="u"
        )(speak),
        "cannot be ordered|'u'": lambda rows, _: rows.top_n(1, by="k", order_by="m", uid="u"),
    }
    for text, build in given.items():
        said = refusal(tmp_path, spark, build)
        assert any(part in said.what for part in text.split("|")), (text, said.what)
        assert said.help, said.what


# -- code that changes ---------------------------------------------------------------------------------


def code(**changed: Any) -> Callable[[Pipeline], None]:
    """Declares operators; of some, something is changed."""
    given: dict[str, Any] = {
        "schema": "k string, v long, at timestamp",
        "by": "k",
        "s": "sum(v)",
        "n": 2,
        "size": "1 h",
    }
    given |= {"more": {}, "how": "left", "extra": True} | changed

    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, given["schema"], event_time="at")

        def put(stream: Any, name: str, *keys: str) -> None:
            stream.sink(name, DeltaUpsert(f"tables/{name}", keys=keys, schema_evolution="add"))

        put(rows.aggregate(by=given["by"], uid="sums", s=given["s"], **given["more"]), "sums", "k")
        put(rows.latest(by="k", order_by="at", uid="newest"), "newest", "k")
        put(rows.top_n(given["n"], by="k", order_by="v", uid="top"), "top", "k", "rank")
        live = rows.window(tumbling=given["size"], by="k", emit="update", uid="live", s="sum(v)", **given["more"])
        put(live, "live", "k", "window_start")
        near = rows.join(
            rows.deduplicate(by="k", uid="once"), on="k", within="1 h", how=given["how"], prefix="r_", uid="near"
        )
        near.sink("near", DeltaAppend("tables/near", schema_evolution="add"))
        if given["extra"]:
            put(rows.aggregate(by="v", uid="extra", k="max(k)"), "extra", "v")

    return declare


def test_state_continues_with_changed_code_or_is_refused_before_anything_runs(tmp_path: Path, spark: Any) -> None:
    def row(k: str, v: int, minutes: int, **more: Any) -> Row:
        return {"k": k, "v": v, "at": (START + timedelta(minutes=minutes)).isoformat(), **more}

    play = SmallPipeline(tmp_path, spark, code())
    play.play([[row("a", 1, 0), row("b", 2, 1)]])

    refused: Mapping[str, dict[str, Any]] = {
        "aggregate 'sums': by is k, v, and was k": {"by": ["k", "v"]},
        "aggregate 'sums': s is max(v), and was sum(v)": {"s": "max(v)"},
        "top-n 'top': n is 3, and was 2": {"n": 3},
        "window 'live': the window is tumbling 2 h, and was tumbling 1 h": {"size": "2 h"},
        "join 'near': how is full, and was left": {"how": "full"},
        "checkpoint 1 has state of extra, which pipeline 'play' no longer has": {"extra": False},
    }
    play.feed([row("a", 10, 5)])
    for text, changed in refused.items():
        play.build = code(**changed)
        with pytest.raises(Invalid) as caught:
            play.checkpoint()
        assert text in str(caught.value)
        assert play.coordinator().ledger.ids() == [1], "nothing was planned"
    play.build = code(by=["k", "v"], s="max(v)", n=3)
    with pytest.raises(Invalid, match=r"(?s)by is k, v.*s is max\(v\).*n is 3"):
        play.checkpoint()

    more = {"xs": "sum(x)", "nx": "count(x)", "dx": "count(distinct x)"}
    play.build = code(schema="k string, x long, v long, at timestamp", s="SUM( v )", more=more)
    play.checkpoint()
    play.play([[row("a", 100, 6, x=5), row("c", 7, 7, x=6)]])
    sums = {r["k"]: (r["s"], r["xs"], r["nx"], r["dx"]) for r in play.rows("tables/sums")}
    assert sums == {"a": (111, 5, 1, 1), "b": (2, None, None, None), "c": (7, 6, 1, 1)}
    assert {r["k"]: (r["s"], r["xs"], r["nx"], r["dx"]) for r in play.rows("tables/live")} == sums
    assert {(r["k"], r["v"], r["x"]) for r in play.rows("tables/newest")} == {
        ("a", 100, 5),
        ("b", 2, None),
        ("c", 7, 6),
    }
    top = {(r["k"], r["rank"], r["v"], r["x"]) for r in play.rows("tables/top")}
    assert top == {("a", 1, 100, 5), ("a", 2, 10, None), ("b", 1, 2, None), ("c", 1, 7, 6)}
    near = counted([{"k": r["k"], "v": r["v"], "r_v": r["r_v"]} for r in play.rows("tables/near")])
    assert near == counted([{"k": k, "v": v, "r_v": w} for k, v, w in
                            (("a", 1, 1), ("b", 2, 2), ("a", 10, 1), ("a", 100, 1), ("c", 7, 7))])  # fmt: skip

    play.build = code(schema="k string, x long, v string, at timestamp", s="max(v)", more=more)
    with pytest.raises(Invalid, match="s is max"):
        play.play([[row("a", 1, 8)]])
    play.build = code(schema="k string, x long, v decimal(9,2), at timestamp", more=more)
    with pytest.raises(Invalid, match=r"'s' is decimal\(19,2\); the state has bigint"):
        play.checkpoint()
