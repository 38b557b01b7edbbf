"""Queries of Nexmark that keep totals, or a few rows, of each key permanently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.nexmark.query import query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate import Pipeline
    from tidegate.pipeline import Stream

RANKS = {
    "total": "",
    "rank1": " filter (where price < 10000)",
    "rank2": " filter (where price >= 10000 and price < 1000000)",
    "rank3": " filter (where price >= 1000000)",
}
BIDS = {f"{rank}_bids": f"count(*){which}" for rank, which in RANKS.items()}
BIDDERS = {f"{rank}_bidders": f"count(distinct bidder){which}" for rank, which in RANKS.items()}
AUCTIONS = {f"{rank}_auctions": f"count(distinct auction){which}" for rank, which in RANKS.items()}


def by_day(pipeline: Pipeline, bid: Stream) -> Stream:
    """Return the bids with their day."""

    @pipeline.stage(bid)
    def dated(bid: DataFrame) -> DataFrame:
        return bid.selectExpr("*", "date_format(date_time, 'yyyy-MM-dd') AS day")

    return dated


@query(keys=["day"])
def q15(pipeline: Pipeline, bid: Stream) -> Stream:
    """Bids, bidders and auctions of each day, in all and by price."""
    return by_day(pipeline, bid).aggregate(by="day", **BIDS, **BIDDERS, **AUCTIONS, uid="totals")


@query(keys=["channel", "day"])
def q16(pipeline: Pipeline, bid: Stream) -> Stream:
    """The same of each channel, with the minute of its last bid."""
    minute = "max(date_format(date_time, 'HH:mm'))"
    dated = by_day(pipeline, bid)
    return dated.aggregate(by=["channel", "day"], minute=minute, **BIDS, **BIDDERS, **AUCTIONS, uid="totals")


@query(keys=["auction", "day"])
def q17(pipeline: Pipeline, bid: Stream) -> Stream:
    """How many bids there are for each auction on each day, and their prices."""
    prices = {f"{name}_price": f"{name}(price)" for name in ("min", "max", "avg", "sum")}
    return by_day(pipeline, bid).aggregate(by=["auction", "day"], **BIDS, **prices, uid="totals")


@query(keys=["bidder", "auction"])
def q18(pipeline: Pipeline, bid: Stream) -> Stream:
    """The last bid of each bidder for each auction."""
    return bid.latest(by=["bidder", "auction"], order_by=["date_time", "price", "extra"], uid="last")


@query(keys=["auction", "rank"])
def q19(pipeline: Pipeline, bid: Stream) -> Stream:
    """The ten highest bids for each auction."""
    return bid.top_n(10, by="auction", order_by=["price desc", "date_time asc", "extra asc"], uid="highest")
