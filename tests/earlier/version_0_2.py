"""Pipelines with every operator of version 0.2.0, as users declared them then, and the rows of their checkpoints.

Declared alike with the code of that version and with today's. `make.py` plays the first rows with that version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidegate import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

__all__ = ["AS_TOLD", "CONTINUED", "EARLIER", "NAME", "REFUSED", "ROWS"]

NAME = "shop"

Feed = Mapping[str, list[dict[str, Any]]]


def _rows(pipeline: Pipeline) -> Any:
    schema = "id long, k string, n int, v long, d double, price decimal(12,2), day date, at timestamp"
    return pipeline.source("rows", Files("landing/rows/*.json", schema=schema), event_time="at", watermark="2 min")


def _others(pipeline: Pipeline) -> Any:
    schema = "k string, w long, at timestamp"
    return pipeline.source("others", Files("landing/others/*.json", schema=schema), event_time="at", watermark="2 min")


def _upsert(stream: Any, name: str, *keys: str) -> None:
    stream.sink(name, DeltaUpsert(f"tables/{name}", keys=list(keys)))


def _append(stream: Any, name: str) -> None:
    stream.sink(name, DeltaAppend(f"tables/{name}"))


def rows_of_keys(pipeline: Pipeline) -> None:
    """The first, the newest, and the greatest rows of keys."""
    rows = _rows(pipeline)
    _append(rows.deduplicate(by="id", uid="once"), "once")
    within = rows.deduplicate(by=["k", "d"], within="5 min", uid="once_within")
    _append(within, "once_within")
    _append(within["late"], "once_late")
    newest = rows.latest(by="k", order_by=["v", "id"], uid="newest")
    _upsert(newest, "newest", "k")
    _upsert(rows.top_n(2, by="k", order_by=["v desc", "id"], uid="best"), "best", "k", "rank")
    _upsert(newest.aggregate(by="n", keys="count(*)", worth="sum(v)", mean="avg(d)", uid="of_newest"), "of_newest", "n")


def aggregates(pipeline: Pipeline) -> None:
    """Totals of keys."""
    rows = _rows(pipeline)
    _upsert(
        rows.aggregate(
            by="k",
            uid="totals",
            number="count(*)",
            present="count(v)",
            total="sum(v)",
            prices="sum(price)",
            mean="avg(v)",
            mean_price="avg(price)",
            least="min(d)",
            first_day="min(day)",
            last="max(at)",
            large="count_if(v > 5)",
            spread="var_pop(v)",
            cheapest="min_by(id, v)",
            dearest="max_by(id, v)",
            all_positive="bool_and(v > 0)",
        ),
        "totals",
        "k",
    )
    _upsert(rows.aggregate(by=["day", "price"], number="count(*)", uid="by_price"), "by_price", "day", "price")
    _upsert(
        rows.aggregate(by="n", ids="count(distinct id)", days="count(distinct k, day)", total="sum(v)", uid="distinct"),
        "distinct",
        "n",
    )
    _upsert(rows.aggregate(by="k", ids="approx_count_distinct(id)", uid="about"), "about", "k")
    _upsert(
        rows.aggregate(by="k", total="sum(v)", state_ttl="20 min", ttl_time="event", uid="expiring"), "expiring", "k"
    )


def windows(pipeline: Pipeline) -> None:
    """Aggregates of windows of event time."""
    rows = _rows(pipeline)
    results = {"number": "count(*)", "total": "sum(v)", "highest": "max(d)", "prices": "sum(price)"}
    tumbling = rows.window(tumbling="10 min", by="k", late="side", uid="tumbling", **results)
    _append(tumbling, "tumbling")
    _append(tumbling["late"], "tumbling_late")
    keys = ("window_start", "window_end", "k")
    _upsert(
        rows.window(tumbling="10 min", by="k", emit="update", allowed_lateness="5 min", uid="updating", **results),
        "updating",
        *keys,
    )
    _upsert(
        rows.window(tumbling="5 min", by="k", allowed_lateness="10 min", uid="patient", **results), "patient", *keys
    )
    _append(rows.window(hopping=("10 min", "5 min"), by="k", uid="hopping", **results), "hopping")
    _append(rows.window(tumbling="10 min", uid="without_key", **results), "without_key")
    _append(
        rows.window(tumbling="10 min", by="n", ids="count(distinct id)", uid="distinct_in_time"), "distinct_in_time"
    )
    _append(rows.window(session="4 min", by="k", uid="sessions", **results), "sessions")


def joins(pipeline: Pipeline) -> None:
    """Joins of what is near in time, and of current rows."""
    rows, others = _rows(pipeline), _others(pipeline)
    for how in ("inner", "left", "full"):
        timed = rows.join(others, on="k", within="5 min", how=how, prefix="other_", uid=f"{how}_within")
        _append(timed, f"{how}_within")
    newest, once = others.latest(by="k", order_by=["w"], uid="newest_others"), rows.deduplicate(by="id", uid="once")
    for how in ("inner", "left"):
        current = once.join(newest, on="k", how=how, prefix="other_", uid=f"{how}_newest")
        _upsert(current, f"{how}_newest", "id")
        _upsert(once.join(others, on="k", how=how, prefix="other_", uid=f"{how}_all"), f"{how}_all", "id", "k", "w")


def functions(pipeline: Pipeline) -> None:
    """Functions of the user's, and a table that one looks up."""
    rows, others = _rows(pipeline), _others(pipeline)
    known = others.broadcast(by="k", order_by=["w"], uid="known")

    @pipeline.stage(rows, known)
    def priced(rows: Any, known: Any) -> Any:
        return rows.join(known.select("k", "w"), "k", "left").select("id", "k", "w")

    _append(priced, "priced")

    @rows.process(by="k", output="k string, number long, total long", state="number long, total long", uid="running")
    def running(key: Any, arrived: Any, state: Any, timers: Any) -> Any:
        state.number = (state.number or 0) + arrived.num_rows
        state.total = (state.total or 0) + sum(value or 0 for value in arrived["v"].to_pylist())
        yield {"k": key["k"], "number": state.number, "total": state.total}

    _append(running, "running")

    @rows.process(
        by="k",
        output="k string, ids array<long>, at timestamp",
        state="ids array<long>, ends timestamp",
        in_order=True,
        uid="quiet",
    )
    def quiet(key: Any, arrived: Any, state: Any, timers: Any) -> Any:
        from datetime import timedelta

        if arrived.num_rows:
            last = arrived["at"].to_pylist()[-1]
            state.ids = [*state.ids, *arrived["id"].to_pylist()]
            state.ends = last + timedelta(minutes=4)
            timers.event(state.ends)
        elif state.ends is not None:
            yield {"k": key["k"], "ids": sorted(state.ids), "at": state.ends}
            state.clear()

    _append(quiet, "quiet")
    _append(quiet["late"], "quiet_late")


def filtered(pipeline: Pipeline) -> None:
    """A count of distinct values that meet a condition."""
    rows = _rows(pipeline)
    counted = rows.aggregate(by="n", ids="count(distinct id) filter (where v > 3)", uid="filtered")
    _upsert(counted, "filtered", "n")


def filtered_as_told(pipeline: Pipeline) -> None:
    """The same as the refusal says to write it."""
    counted = _rows(pipeline).aggregate(by="n", ids="count(distinct CASE WHEN (v > 3) THEN id END)", uid="filtered")
    _upsert(counted, "filtered", "n")


def after_a_join(pipeline: Pipeline) -> None:
    """Totals of an inner join of streams that only add rows: it replaced rows then, and only adds them now."""
    rows, others = _rows(pipeline), _others(pipeline)
    joined = rows.join(others, on="k", prefix="other_", uid="pairs")
    _upsert(joined.aggregate(by="k", pairs="count(*)", uid="after_a_join"), "after_a_join", "k")


CONTINUED: dict[str, Callable[[Pipeline], None]] = {
    "rows of keys": rows_of_keys,
    "aggregates": aggregates,
    "windows": windows,
    "joins": joins,
    "functions": functions,
}
"""Those whose state continues to count."""
REFUSED: dict[str, Callable[[Pipeline], None]] = {"filtered": filtered, "after a join": after_a_join}
"""Those whose state means something else today."""
AS_TOLD: dict[str, Callable[[Pipeline], None]] = {"filtered": filtered_as_told}
"""Those of them that continue if they are declared as the refusal says."""


def _row(id: int, k: str | None, n: int | None, v: int | None, d: float | None, minute: int) -> dict[str, Any]:
    at = f"2026-01-01T{10 + minute // 60:02}:{minute % 60:02}:00Z"
    price = None if v is None else f"{v}.{id % 100:02}"
    return {"id": id, "k": k, "n": n, "v": v, "d": d, "price": price, "day": f"2026-01-{1 + id % 3:02}", "at": at}


def _other(k: str, w: int, minute: int) -> dict[str, Any]:
    return {"k": k, "w": w, "at": f"2026-01-01T{10 + minute // 60:02}:{minute % 60:02}:00Z"}


ROWS: list[Feed] = [
    {
        "rows": [
            _row(1, "a", 1, 5, 1.5, 0),
            _row(2, "b", 1, 7, 0.0, 1),
            _row(3, "a", 2, 9, 1.5, 3),
            _row(4, None, None, 2, None, 4),
            _row(1, "a", 1, 5, 1.5, 0),
            _row(5, "c", 2, None, 3.25, 5),
        ],
        "others": [_other("a", 10, 1), _other("b", 20, 2)],
    },
    {
        "rows": [
            _row(6, "a", 1, -3, 2.5, 9),
            _row(2, "b", 1, 7, -0.0, 6),
            _row(7, "é", 3, 4, 1e9, 8),
            _row(8, "b", 2, 8, 0.0, 11),
            _row(9, "c", 1, 6, 3.25, 1),
        ],
        "others": [_other("a", 11, 7), _other("d", 40, 9), _other("é", 5, 8)],
    },
    {
        "rows": [_row(10, "c", 3, 1, 0.5, 13), _row(11, "a", 2, 9, 1.5, 12), _row(12, None, 1, 3, None, 14)],
        "others": [_other("b", 21, 12)],
    },
    # from here on with today's code
    {
        "rows": [
            _row(1, "a", 1, 5, 1.5, 15),
            _row(13, "a", 1, 12, 2.5, 14),
            _row(14, "b", 3, -8, -0.0, 15),
            _row(15, "c", 1, 2, 0.5, 2),
            _row(16, None, None, 1, None, 17),
        ],
        "others": [_other("c", 30, 15), _other("a", 12, 14)],
    },
    {"rows": [_row(17, "d", 2, 4, 7.0, 24), _row(6, "a", 1, -3, 2.5, 22)], "others": [_other("d", 41, 23)]},
    {"rows": [_row(18, "e", 1, 1, 1.0, 55), _row(19, "é", 3, 9, 1e9, 50)], "others": [_other("e", 1, 56)]},
]
"""What comes in each checkpoint: files of each source."""

EARLIER = 3
"""So many checkpoints were made by version 0.2.0."""
