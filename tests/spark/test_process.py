"""`process`: a function per key with state and timers, on real Spark: what it gives and remembers belongs together."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.random_cuts import Telling
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.errors import Invalid
from tidegate.operators import ListState, MapState
from tidegate.sinks import DeltaAppend

pytestmark = in_turn(seconds=135)


def told(key: dict[str, Any], rows: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
    """Says of each value whether the key has had it, counts, and speaks up once more when it is called by the clock."""
    for fired in timers.fired:
        yield {"k": key["k"], "said": f"{fired.name} after {state.count}", "v": None}
        state.clear()
    for row in rows.to_pylist():
        again = row["v"] in state.seen
        yield {"k": key["k"], "said": "again" if again else "new", "v": row["v"]}
        if not again:
            state.seen.append(row["v"])
        state.times[str(row["v"])] = state.times.get(str(row["v"]), 0) + 1
        state.count = (state.count or 0) + 1
        if row["v"] == 9:
            timers.clock(timers.now + timedelta(days=1000 if key["k"] == "far" else -1), "alarm")


def build(pipeline: Pipeline) -> None:
    rows = sources(pipeline, "k string, v long, at timestamp")
    made = rows.process(
        by=["k"],
        state="seen array<long>, times map<string, long>, count long",
        output="k string, said string, v long",
        order_by="at",
        uid="told",
    )(told)
    made.sink("said", DeltaAppend("tables/said"))


def test_what_it_says_does_not_depend_on_how_its_rows_are_cut(tmp_path: Path, spark: Any) -> None:
    random.seed(11)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    keys = [None, "a", "b", "c"]
    rows = [
        {"k": random.choice(keys), "v": random.randint(1, 5), "at": (begin + timedelta(seconds=n)).isoformat()}
        for n in range(60)
    ]
    whole, cut = SmallPipeline(tmp_path / "whole", spark, build), SmallPipeline(tmp_path / "cut", spark, build)
    whole.play([rows])
    cut.play([rows[:1], rows[1:20], [], rows[20:59], rows[59:]])

    seen: dict[Any, set[int]] = {key: set() for key in keys}
    expected = []
    for row in rows:
        expected.append((row["k"], "again" if row["v"] in seen[row["k"]] else "new", row["v"]))
        seen[row["k"]].add(row["v"])

    def order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return sorted(rows, key=str)

    for play in (whole, cut):
        assert order([(r["k"], r["said"], r["v"]) for r in play.rows("tables/said")]) == order(expected)
        state = {r["k"]: (sorted(r["seen"]), r["count"]) for r in newest(play.rows("ledger/play/state/told"))}
        assert state == {key: (sorted(seen[key]), sum(r["k"] == key for r in rows)) for key in keys}


def test_keys_with_a_negative_zero_are_those_with_a_zero(tmp_path: Path, spark: Any) -> None:
    """As Spark's groups have it, however deep in a key; its `cogroup` fails by itself."""

    def counted(key: dict[str, Any], rows: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
        state.count = (state.count or 0) + rows.num_rows
        yield {"k": str(key["k"]), "n": state.count}

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k double, v long, at timestamp")
        for name, key in {"plain": "k", "deep": "named_struct('it\\'s', array(k, CAST(NULL AS double))) AS k"}.items():
            keyed = rows.select(key, "v", "at", name=f"keyed-{name}")
            made = keyed.process(by=["k"], state="count long", output="k string, n long", order_by="at", uid=name)
            made(counted).sink(name, DeltaAppend(f"tables/{name}"))

    play = SmallPipeline(tmp_path, spark, build)
    rows = [{"k": k, "v": n, "at": f"2026-01-01T00:00:0{n}Z"} for n, k in enumerate([-0.0, 0.0, -0.0, 1.5, None])]
    play.play([rows[:1], rows[1:4], rows[4:], rows[:1]])
    wanted = [("0.0", 1), ("0.0", 3), ("1.5", 1), ("None", 1), ("0.0", 4)]
    assert sorted((r["k"], r["n"]) for r in play.rows("tables/plain")) == sorted(wanted)
    deep = {k: str({"it's": [None if k == "None" else float(k), None]}) for k, _ in wanted}
    assert sorted((r["k"], r["n"]) for r in play.rows("tables/deep")) == sorted((deep[k], n) for k, n in wanted)


def test_a_timer_calls_a_key_without_rows_once_and_a_cleared_key_is_forgotten(tmp_path: Path, spark: Any) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC).isoformat()
    play = SmallPipeline(tmp_path, spark, build)
    play.play([[{"k": "near", "v": 9, "at": at}, {"k": "far", "v": 9, "at": at}], [], []])
    said = [(r["k"], r["said"]) for r in play.rows("tables/said")]
    assert sorted(said) == [("far", "new"), ("near", "alarm after 1"), ("near", "new")]
    assert [r["k"] for r in newest(play.rows("ledger/play/state/told"))] == ["far"]
    assert [r["k"] for r in newest(play.rows("ledger/play/state/told.timers"))] == ["far"]
    assert not list((tmp_path / "ledger").rglob("scratch*")), "what an attempt wrote for itself is gone"


def test_a_function_that_fails_or_gives_nonsense_is_told_by_name(tmp_path: Path, spark: Any) -> None:
    def wrong(key: Any, rows: Any, state: Any, timers: Any) -> Any:
        return [{"k": "x", "other": 1}] if key["k"] == "columns" else state.nothing

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, v long, at timestamp")
        rows.process(by="k", state="n long", output="k string")(wrong).sink("said", DeltaAppend("tables/said"))

    for key, text in (("columns", "columns that its output does not have: ['other']"), ("field", "no field 'nothing'")):
        play = SmallPipeline(tmp_path / key, spark, build)
        with pytest.raises(Invalid, match="process|field") as refused:
            play.play([[{"k": key, "v": 1}]])
        assert text in str(refused.value)
        assert play.rows("tables/said") == []


def test_wrong_declarations_are_refused_together() -> None:
    pipeline = Pipeline("wrong")
    rows = sources(pipeline, "k string")
    rows.process(by=[], state="n lang, _x long", output="k")(told).sink("said", DeltaAppend("t"))  # type: ignore[arg-type]
    with pytest.raises(Invalid) as refused:
        pipeline.graph()
    for text in ("it has no key", "output='k'", "state='n lang, _x long'"):
        assert text in str(refused.value)


def newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row["_checkpoint"]):
        found[row["k"]] = row
    return [row for row in found.values() if not row["_deleted"]]


def test_a_state_by_event_time_lives_as_long_as_its_rows_say_however_far_a_checkpoint_reaches(
    tmp_path: Path, spark: Any
) -> None:
    def counting(key: Any, rows: Any, state: Any, timers: Any) -> Iterator[dict[str, Any]]:
        state.n = (state.n or 0) + rows.num_rows
        yield {"k": key["k"], "n": state.n}

    def build(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, at timestamp", event_time="at")
        made = rows.process(by="k", state="n long", output="k string, n long", state_ttl="1 h", ttl_time="event")(
            counting
        )
        made.sink("counts", DeltaAppend("tables/counts"))

    def rows(*given: tuple[str, float]) -> list[dict[str, Any]]:
        begin = datetime(2026, 1, 1, tzinfo=UTC)
        return [{"k": k, "at": (begin + timedelta(hours=hours)).isoformat()} for k, hours in given]

    play = SmallPipeline(tmp_path, spark, build)
    play.play([rows(("a", 0), ("b", 0), ("a", 50)), rows(("a", 50.5), ("c", 52)), rows(("a", 52), ("b", 52))])
    told = [(r["k"], r["n"]) for r in play.rows("tables/counts")]
    assert sorted(told) == [("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 1), ("c", 1)]


def test_two_streams_a_lookup_table_and_named_outputs(tmp_path: Path, spark: Any) -> None:
    def matched(key: Any, orders: Any, payments: Any, state: Any, timers: Any, rules: Any) -> Iterator[Any]:
        limits = {row["k"]: row["most"] for row in rules.to_pylist()}
        for row in orders.to_pylist():
            state.owed = (state.owed or 0) + row["v"]
            yield {"k": key["k"], "owed": state.owed}
            if row["v"] > limits.get(key["k"], 100):
                yield "big", {"k": key["k"], "v": row["v"]}
        for row in payments.to_pylist():
            state.owed = (state.owed or 0) - row["w"]
            yield {"k": key["k"], "owed": state.owed}

    def declare(pipeline: Pipeline) -> None:
        orders = sources(pipeline, "k string, v long, at timestamp", "orders", event_time="at")
        payments = sources(pipeline, "k string, w long, paid_at timestamp", "payments", event_time="paid_at")
        rules = sources(pipeline, "k string, most long, n long", "rules").broadcast(by="k", order_by="n", uid="limits")
        made = orders.process(
            by="k", state="owed long", output="k string, owed long", other=payments, lookup=rules,
            outputs={"big": "k string, v long"}, in_order=True, uid="matched",
        )(matched)  # fmt: skip
        made.sink("owed", DeltaAppend("tables/owed"))
        made["big"].sink("big", DeltaAppend("tables/big"))
        made["late-other"].sink("late", DeltaAppend("tables/late"))

    def minute(number: int) -> str:
        return (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=number)).isoformat()

    play = SmallPipeline(tmp_path, spark, declare)
    play.feed([{"k": "a", "most": 9, "n": 1}], "rules")
    play.feed([{"k": "a", "v": 10, "at": minute(3)}, {"k": None, "v": 200, "at": minute(1)}], "orders")
    play.feed([{"k": "a", "w": 4, "paid_at": minute(2)}, {"k": "end", "w": 0, "paid_at": minute(90)}], "payments")
    play.checkpoint()
    play.feed([{"k": "a", "v": 7, "at": minute(4)}, {"k": "end", "v": 0, "at": minute(80)}], "orders")
    play.feed([{"k": "a", "w": 6, "paid_at": minute(5)}], "payments")
    play.checkpoint()
    play.feed([{"k": "a", "w": 1, "paid_at": minute(6)}], "payments")
    play.feed([{"k": "a", "most": 1, "n": 2}], "rules")
    play.checkpoint()
    owed = Counter((row["k"], row["owed"]) for row in play.rows("tables/owed") if row["k"] != "end")
    assert owed == Counter({("a", -4): 1, ("a", 6): 1, ("a", 13): 1, ("a", 7): 1, (None, 200): 1})
    assert sorted((str(row["k"]), row["v"]) for row in play.rows("tables/big")) == [("None", 200), ("a", 10)]
    assert [(row["k"], row["w"]) for row in play.rows("tables/late")] == [("a", 1)]


def test_maps_of_a_key_hold_what_rows_name_and_forget_each_entry_in_its_time(tmp_path: Path, spark: Any) -> None:
    def counted(key: Any, orders: Any, returns: Any, state: Any, timers: Any) -> Iterator[Any]:
        for sign, table in ((1, orders), (-1, returns)):
            for row in table.to_pylist():
                product = state.bought[row["product"]]
                product.n = (product.n or 0) + sign
                state.rows = (state.rows or 0) + 1
                yield {"k": key["k"], "told": f"{state.rows}: {product.n} {row['product']}"}
                if product.n == 0:
                    product.clear()

    def declare(pipeline: Pipeline) -> None:
        orders = sources(pipeline, "k string, product string, at timestamp", "orders", event_time="at")
        returns = sources(pipeline, "product string, k string, at timestamp", "returns", event_time="at")
        made = orders.process(
            by="k", state="rows long", output="k string, told string", other=returns, in_order=True, uid="counted",
            maps={"bought": MapState(by="product", state="n long", state_ttl="36 h")},
        )(counted)  # fmt: skip
        made.sink("told", DeltaAppend("tables/told"))

    play, moved = SmallPipeline(tmp_path, spark, declare), iter(range(100))

    def day(number: int, *rows: tuple[str, str, str], fault: str = "") -> list[str]:
        for source, k, product in (*rows, ("orders", "-", "-"), ("returns", "-", "-")):
            at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=next(moved))
            play.feed([{"k": k, "product": product, "at": at.isoformat()}], source)
        with seams.installed(seams.Seams(now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number))):
            Telling(play, spark, itertools.cycle([1, 2])).checkpoint(fault)
        told = [row["told"] for row in play.rows("tables/told") if row["k"] == "a"]
        return sorted(told, key=lambda text: int(text.split(":")[0]))

    tea, ink = ("orders", "a", "tea"), ("orders", "a", "ink")
    assert day(0, tea, ink, tea) == ["1: 1 tea", "2: 1 ink", "3: 2 tea"]
    assert day(1, tea, ("returns", "a", "pen"), fault="twice")[3:] == ["4: 3 tea", "5: -1 pen"]
    assert day(2, ink, tea, ("orders", "a", "pen"))[5:] == ["6: 1 ink", "7: 4 tea", "8: 0 pen"], "no ink for two days"
    held = {(row["k"], row["product"]): row["n"] for row in shown(play, "map-bought")}
    assert {key: n for key, n in held.items() if key[0] == "a"} == {("a", "tea"): 4, ("a", "ink"): 1}


def test_lists_of_a_key_are_read_as_they_were_appended_and_fields_expire_each_in_its_time(
    tmp_path: Path, spark: Any
) -> None:
    """Only a row that says so iterates, or clears. Every other attempt reads entries from files, the others get whole
    lists with their keys."""

    def visited(key: Any, rows: Any, state: Any, timers: Any) -> Iterator[Any]:
        for row in rows.to_pylist():
            state.rows = (state.rows or 0) + 1
            told = f"{state.rows}, {state.last or 'long ago'}"
            state.last = row["page"]
            if row["page"] == "list":
                told += ": " + ", ".join(f"{visit['page']}{visit['tags']}" for visit in state.visits)
            elif row["page"] == "clear":
                state.visits.clear()
            else:
                state.visits.append({"page": row["page"], "tags": [state.rows], "at": row["at"]})
                state.kept.append({"page": row["page"]})
            yield {"k": key["k"], "told": f"{told} {'+' if state.visits else '-'}{sum(1 for _ in state.kept)}"}

    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, page string, at timestamp", event_time="at")
        made = rows.process(
            by="k", state="rows long, last string", output="k string, told string", in_order=True, uid="visited",
            lists={"visits": ListState("page string, tags array<long>, at timestamp", state_ttl="36 h"),
                   "kept": ListState("page string")},
            state_ttl={"last": "36 h"},
        )(visited)  # fmt: skip
        made.sink("told", DeltaAppend("tables/told"))

    play, moved, cycle = SmallPipeline(tmp_path, spark, declare), iter(range(100)), itertools.cycle([1, -2])

    def day(number: int, *pages: str, fault: str = "") -> list[str]:
        for k, page in [(k, page) for page in pages for k in (None, "b")] + [("-", "list")]:
            at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=next(moved))
            play.feed([{"k": k, "page": page, "at": at.isoformat()}])
        with seams.installed(seams.Seams(now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number))):
            Telling(play, spark, cycle).checkpoint(fault)
        told = [[row["told"] for row in play.rows("tables/told") if row["k"] == k] for k in (None, "b")]
        assert sorted(told[0]) == sorted(told[1]), "a null is a key like any other"
        return sorted(told[0], key=lambda text: int(text.split(",")[0]))

    assert day(0, "x", "list", "y") == ["1, long ago +1", "2, x: x[1] +1", "3, list +2"]
    assert day(1, "z", "list", fault="twice")[3:] == ["4, y +3", "5, z: x[1], y[3], z[4] +3"]
    assert day(2, "list", "w", "list", fault="crash")[5:] == ["6, list: z[4] +3", "7, list +4", "8, w: z[4], w[7] +4"]
    # What was last is the same at the end of days 1 and 2: it has not changed for two days.
    assert day(3, "clear", "v", "list", "clear")[8:] == [
        "9, long ago -4",
        "10, clear +5",
        "11, v: v[10] +5",
        "12, list -5",
    ]
    assert day(4, "u", "list")[12:] == ["13, clear +6", "14, u: u[13] +6"]
    assert day(6, "list", "t")[14:] == ["15, long ago:  -6", "16, list +7"]
    kept = [row for row in shown(play, "list-kept", "visited") if row["k"] == "b"]
    assert [row["page"] for row in sorted(kept, key=lambda row: row["_place"])] == list("xyzwvut")
    written = sum(each.file.rows for each in play.state("visited.list-kept").files)
    assert written <= 7 * 2, "what is appended is written once"


@pytest.mark.parametrize("tasks", [1, -1], ids=["read from files", "whole with its key"])
def test_entries_from_before_a_field_was_added_have_nothing_in_it(tmp_path: Path, spark: Any, tasks: int) -> None:
    fields = ["page string"]

    def visited(key: Any, rows: Any, state: Any, timers: Any) -> Iterator[Any]:
        for row in rows.to_pylist():
            if row["page"] == "list":
                yield {"told": " ".join(str(list(visit.values())) for visit in state.visits)}
            else:
                tags = {"tags": [1], "at": row["at"].year} if len(fields) > 1 else {}
                state.visits.append({"page": row["page"], **tags})

    def declare(pipeline: Pipeline) -> None:
        rows = sources(pipeline, "k string, page string, at timestamp", event_time="at")
        made = rows.process(
            by="k", state="n long", output="told string", order_by="at", uid="visited",
            lists={"visits": ListState(", ".join(fields))},
        )(visited)  # fmt: skip
        made.sink("told", DeltaAppend("tables/told"))

    play, minutes = SmallPipeline(tmp_path, spark, declare), iter(range(100))

    def checkpoint(*pages: str) -> None:
        ats = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=next(minutes)) for _ in pages]
        play.feed([{"k": "a", "page": page, "at": at.isoformat()} for page, at in zip(pages, ats, strict=True)])
        Telling(play, spark, itertools.repeat(tasks)).checkpoint("")

    checkpoint("x")
    fields += ["tags array<long>", "at int"]
    checkpoint("list")
    checkpoint("y", "list")
    checkpoint("list")
    told = sorted(row["told"] for row in play.rows("tables/told"))
    assert told == ["['x', [], None]"] + ["['x', [], None] ['y', [1], 2026]"] * 2


def test_a_buffer_that_belongs_to_no_key_is_that_of_a_shard_whatever_tasks_there_are(
    tmp_path: Path, spark: Any
) -> None:
    """Rows are given in blocks of four, none of them twice; each call knows all rules."""

    def blocks(key: Any, rows: Any, state: Any, timers: Any, rules: Any) -> Iterator[Any]:
        for row in rows.to_pylist():
            state.buffer.append({"id": row["id"]})
            state.n = (state.n or 0) + 1
            if state.n == 4:
                known = sum(rule["factor"] for rule in rules.to_pylist())
                yield {"ids": [each["id"] for each in state.buffer], "known": known}
                state.buffer.clear()
                state.n = 0

    def declare(pipeline: Pipeline) -> None:
        rules = sources(pipeline, "name string, factor long, n long", "rules").broadcast(by="name", order_by="n")
        rows = sources(pipeline, "id long")
        sharded = pipeline.stage(rows, name="sharded")(lambda rows: rows.selectExpr("*", "pmod(id, 3) AS shard"))
        made = sharded.process(
            by="shard", state="n long", output="ids array<long>, known long", order_by="id", lookup=rules,
            lists={"buffer": ListState("id long")}, uid="blocks",
        )(blocks)  # fmt: skip
        made.sink("blocks", DeltaAppend("tables/blocks"))

    play, tasks = SmallPipeline(tmp_path, spark, declare), itertools.cycle([1, 3, -2, 2])
    play.feed([{"name": name, "factor": 1, "n": 1} for name in "abc"], "rules")
    for number, fault in enumerate(("", "twice", "crash")):
        play.feed([{"id": id} for id in range(number * 10, number * 10 + 10)])
        Telling(play, spark, tasks).checkpoint(fault)
    found = sorted((tuple(row["ids"]), row["known"]) for row in play.rows("tables/blocks"))
    ids = [list(range(shard, 30, 3)) for shard in range(3)]
    assert found == sorted((tuple(own[begin : begin + 4]), 3) for own in ids for begin in (0, 4))


def test_with_another_number_of_shards_the_rows_of_those_that_are_gone_are_handed_over_by_a_timer(
    tmp_path: Path, spark: Any
) -> None:
    """Rows are given in blocks of four. A shard that has had none for a day and a half gives what it has."""

    def blocks(key: Any, rows: Any, state: Any, timers: Any) -> Iterator[Any]:
        for row in [*rows.to_pylist(), *timers.fired]:
            if isinstance(row, dict):
                state.buffer.append({"id": row["id"]})
                state.n = (state.n or 0) + 1
            if state.n == 4 or (state.n and timers.fired):
                yield {"ids": [each["id"] for each in state.buffer], "shard": key["shard"]}
                state.buffer.clear()
                state.n = 0
        if not timers.fired:
            timers.clock(timers.now + timedelta(hours=36))

    def shards(count: int) -> Callable[[Pipeline], None]:
        def declare(pipeline: Pipeline) -> None:
            made = sources(pipeline, "id long").select("*", f"pmod(id, {count}) AS shard", name="sharded").process(
                by="shard", state="n long", output="ids array<long>, shard long", order_by="id",
                lists={"buffer": ListState("id long")}, uid="blocks",
            )(blocks)  # fmt: skip
            made.sink("blocks", DeltaAppend("tables/blocks"))

        return declare

    play, tasks = SmallPipeline(tmp_path, spark, shards(3)), itertools.cycle([1, 3, -2, 2])
    for number, fault in enumerate(("crash", "", "twice", "abort", "")):
        if number == 2:
            play.build = shards(2)
        play.feed([{"id": id} for id in range(number * 5, number * 5 + 5)])
        with seams.installed(seams.Seams(now=lambda day=number: datetime(2026, 1, 1 + day, tzinfo=UTC))):
            Telling(play, spark, tasks).checkpoint(fault)
    with seams.installed(seams.Seams(now=lambda: datetime(2026, 1, 9, tzinfo=UTC))):
        play.checkpoint()
    found = {tuple(row["ids"]): row["shard"] for row in play.rows("tables/blocks")}
    assert found[2, 5, 8] == 2, "nothing came for it any more"
    assert found[1, 4, 7, 11] == 1, "it has rows of both"
    assert sorted(id for ids in found for id in ids) == list(range(25))


def shown(play: SmallPipeline, part: str, uid: str = "counted") -> list[dict[str, Any]]:
    """What lies in a part of the state, as of the last checkpoint."""
    from tidegate.state.versions import newest

    state = play.state(f"{uid}.{part}")
    paths = [str(play.root / "ledger" / play.name / "state" / f"{uid}.{part}" / each.file.path) for each in state.files]
    return [row.asDict() for row in newest(play.spark.read.parquet(*paths), state.keys, None, once=False).collect()]
