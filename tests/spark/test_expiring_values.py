"""Exact counts of distinct values whose totals expire: what counts, and what is left in the tables of the state. And
versions of a join that expire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn
from tests.spark.small_pipeline import SmallPipeline, sources
from tidegate import Pipeline, seams
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.state.arrow import workers

pytestmark = in_turn(seconds=115)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Totals = dict[str, tuple[int, int]]


def counts(
    state_ttl: str | None, by: str = "k", ttl_time: str = "processing", keys: Sequence[str] = ()
) -> Callable[[Pipeline], None]:
    """keys: the table's, if they are not those of the totals."""

    def build(pipeline: Pipeline) -> None:
        kwargs = {"event_time": "at", "watermark": "0 s"} if ttl_time == "event" else {}
        rows = sources(pipeline, "k string, w long, at timestamp", "rows", **kwargs)
        totals = rows.aggregate(
            by=[by] if by else [],
            rows="count(*)",
            kinds="count(distinct w)",
            uid="totals",
            state_ttl=state_ttl,
            ttl_time=ttl_time,
        )
        totals.sink("totals", DeltaUpsert("tables/totals", keys=keys or [by or "rows"]))

    return build


class Days(SmallPipeline):
    """A checkpoint a day."""

    def day(self, number: int, **values: list[int]) -> Totals:
        """Let rows come on a day, by key, and return each key's number of rows and of kinds."""
        at = f"{BEGIN + timedelta(days=number):%Y-%m-%d %H:%M:%S}"
        self.feed([{"k": key, "w": value, "at": at} for key, each in values.items() for value in each])
        with seams.installed(seams.Seams(now=lambda: BEGIN + timedelta(days=number))):
            self.checkpoint()
        return {row.get("k", ""): (row["rows"], row["kinds"]) for row in self.rows("tables/totals")}

    def values_kept(self) -> int:
        """How many rows the files of the values have."""
        (name,) = [name for name in self.graph().tables if name.startswith("state.totals") and "distinct" in name]
        return sum(file.file.rows for file in self.state(name.removeprefix("state.")).files)


@pytest.mark.parametrize("ttl_time", ["processing", "event"])
def test_values_count_as_long_as_their_key_lives_and_then_they_are_dropped(
    tmp_path: Path, spark: Any, ttl_time: str
) -> None:
    """Key a speaks each day. Each day there is a key of its own, too, which is never seen again."""
    play = Days(tmp_path, spark, counts("36 h", ttl_time=ttl_time))
    for number in range(12):
        word = 7 if number in (0, 11) else number % 3
        told = play.day(number, a=[word], **{f"d{number}": [1, 2, 3, 4, 5]})
    assert told["a"] == (12, 4), "7 came on the first day, and did not count again on the last"
    assert told["d11"] == (5, 5)
    values = play.values_kept()
    assert values <= 4 + 5 * 5, f"{values} values are kept, of which nearly all belong to keys of long ago"


def test_a_key_that_was_forgotten_counts_its_values_anew(tmp_path: Path, spark: Any) -> None:
    play = Days(tmp_path, spark, counts("36 h"))
    assert play.day(0, a=[1, 2, 2], b=[1]) == {"a": (3, 2), "b": (1, 1)}
    assert play.day(1, b=[2])["b"] == (2, 2)
    assert play.day(2, a=[2, 3], b=[1]) == {"a": (2, 2), "b": (3, 2)}, "a was silent for two days"
    assert play.day(3, a=[1, 2, 3], b=[3]) == {"a": (5, 3), "b": (4, 3)}, "1 was counted in an earlier life only"


@pytest.mark.parametrize("computed_by", ["workers", "workers, of much", "through Spark"])
def test_values_of_an_earlier_life_do_not_count_while_they_are_still_kept(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, computed_by: str
) -> None:
    """b is forgotten after its values could have been dropped, and comes back before that is due again."""
    if computed_by == "workers, of much":
        monkeypatch.setattr("tidegate.execution.job.run_job.is_small", lambda _: False)
        monkeypatch.setattr("tidegate.operators.distinct.pre_aggregation.UNREDUCED", 0)
    if computed_by == "through Spark":
        monkeypatch.setattr(workers, "usable", lambda *_: False)
    play = Days(tmp_path, spark, counts("36 h"))
    play.day(0, a=[1])
    play.day(1, b=[1, 2])
    assert play.day(2, a=[1])["a"] == (1, 1)
    assert play.values_kept() == 3, "what a counted first is dropped, what b did is not"
    assert play.day(3, b=[2, 3])["b"] == (2, 2)
    assert play.day(4, b=[1, 2])["b"] == (4, 3)


def test_totals_of_all_rows_begin_anew_too(tmp_path: Path, spark: Any) -> None:
    """The row that was given before stays in the table, since nothing takes back what has expired."""
    play = Days(tmp_path, spark, counts("36 h", by=""))
    for number in (0, 1, 3, 4, 7):
        play.day(number, a=[number // 3])
    given = Counter((row["rows"], row["kinds"]) for row in play.rows("tables/totals"))
    assert given == Counter([(1, 1), (2, 1)])
    assert play.values_kept() == 1


def test_a_table_that_goes_by_more_than_the_key_shows_a_life_beside_the_next(tmp_path: Path, spark: Any) -> None:
    """Nothing takes back the last row of a life; and what the key has now is in the table whatever there is beside."""
    play = Days(tmp_path, spark, counts("36 h", keys=["k", "rows"]))

    def shown(number: int) -> list[int]:
        play.day(number, a=[1])
        return sorted(row["rows"] for row in play.rows("tables/totals"))

    assert [shown(0), shown(1)] == [[1], [2]]
    assert shown(3) == [1, 2], "a was silent for two days: its second life is beside the first"
    assert shown(4) == [2], "the same row as that which was left of the first"
    assert shown(5) == [3], "and taken back with it"
    assert shown(8) == [1, 3]


def test_state_ttl_may_be_declared_later_and_what_has_counted_still_has(tmp_path: Path, spark: Any) -> None:
    play = Days(tmp_path, spark, counts(None))
    assert play.day(0, a=[1, 2], b=[1, 2]) == {"a": (2, 2), "b": (2, 2)}
    play.build = counts("36 h")
    assert play.day(1, a=[1, 3]) == {"a": (4, 3), "b": (2, 2)}
    assert play.day(2, a=[2], b=[2]) == {"a": (5, 3), "b": (3, 2)}, "b was there before anything could expire"
    assert play.day(4, a=[2, 9], b=[2, 1]) == {"a": (2, 2), "b": (2, 2)}
    assert play.day(5, a=[1, 2, 3]) == {"a": (5, 4), "b": (2, 2)}


def test_state_ttl_may_be_left_out_later_and_values_of_an_earlier_life_do_not_come_back(
    tmp_path: Path, spark: Any
) -> None:
    play = Days(tmp_path, spark, counts("36 h"))
    play.day(0, a=[1, 2])
    assert play.day(2, a=[3])["a"] == (1, 1)
    play.build = counts(None)
    assert play.day(9, a=[1], b=[1]) == {"a": (2, 2), "b": (1, 1)}
    assert play.day(19, a=[1, 2, 3], b=[1]) == {"a": (5, 3), "b": (2, 1)}
    play.build = counts("36 h")
    assert play.day(20, a=[1, 2, 3], b=[1]) == {"a": (8, 3), "b": (3, 1)}


@pytest.mark.parametrize("silent", [2, 4, 6])
def test_with_a_longer_state_ttl_a_key_has_all_of_its_values_or_none(tmp_path: Path, spark: Any, silent: int) -> None:
    """What has expired, but is still in the tables, may come to count again; but never without its values."""
    play = Days(tmp_path, spark, counts("36 h"))
    play.day(0, a=[1, 2, 3], b=[1])
    for number in range(1, silent):
        play.day(number, b=[number])
    play.build = counts("30 days")
    assert play.day(silent, a=[1, 4])["a"] in ((5, 4), (2, 2))


@pytest.mark.parametrize("ttl", [None, "36 h"])
def test_a_version_that_has_expired_does_not_hold_any_more(tmp_path: Path, spark: Any, ttl: str | None) -> None:
    """Orders of days 0, 1 and 4; the price of day 0, and one of day 3 that another key has."""

    def build(pipeline: Pipeline) -> None:
        orders, prices = (
            sources(pipeline, schema, name, event_time=time, watermark="0 s")
            for name, schema, time in (
                ("orders", "k string, id long, at timestamp", "at"),
                ("prices", "k string, price long, since timestamp", "since"),
            )
        )
        then = orders.join(
            prices, on="k", as_of=True, how="left", event_time=("at", "since"), state_ttl=ttl, uid="then"
        )
        then.sink("then", DeltaAppend("tables/then"))

    play = SmallPipeline(tmp_path, spark, build)
    for day, ids, prices in (0, [1], {"a": 7}), (1, [2], {}), (2, [], {}), (3, [], {"b": 8}), (4, [3], {}):
        now = BEGIN + timedelta(days=day)
        hours = [f"{now + timedelta(hours=hour):%Y-%m-%d %H:%M:%S}" for hour in (0, 1, 2)]
        play.feed([{"k": k, "price": price, "since": hours[0]} for k, price in prices.items()], "prices")
        play.feed([{"k": "z", "price": 0, "since": hours[2]}], "prices")
        came = [{"k": "a", "id": id, "at": hours[1]} for id in ids]
        play.feed([*came, {"k": "z", "id": 0, "at": hours[2]}], "orders")
        with seams.installed(seams.Seams(now=lambda now=now: now)):
            play.checkpoint()
    prices_of = {row["id"]: row["price"] for row in play.rows("tables/then") if row["k"] == "a"}
    assert prices_of == {1: 7, 2: 7, 3: 7 if ttl is None else None}
