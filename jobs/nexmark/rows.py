"""Queries of Nexmark that look at each bid for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.nexmark.query import SIDE_INPUT, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate import Pipeline
    from tidegate.pipeline import Stream


@query()
def q0(pipeline: Pipeline, bid: Stream) -> Stream:
    """All bids as they are: what the machinery costs."""

    @pipeline.stage(bid)
    def passed(bid: DataFrame) -> DataFrame:
        return bid.select("auction", "bidder", "price", "date_time", "extra")

    return passed


@query()
def q1(pipeline: Pipeline, bid: Stream) -> Stream:
    """Prices in euros."""

    @pipeline.stage(bid)
    def euros(bid: DataFrame) -> DataFrame:
        price = "CAST(0.908 * price AS DECIMAL(23, 3)) AS price"
        return bid.selectExpr("auction", "bidder", price, "date_time", "extra")

    return euros


@query()
def q2(pipeline: Pipeline, bid: Stream) -> Stream:
    """Bids for every 123rd auction."""

    @pipeline.stage(bid)
    def chosen(bid: DataFrame) -> DataFrame:
        return bid.where("auction % 123 = 0").select("auction", "price")

    return chosen


@query(partition_by=["dt", "hm"])
def q10(pipeline: Pipeline, bid: Stream) -> Stream:
    """All bids in files by day and minute."""

    @pipeline.stage(bid)
    def logged(bid: DataFrame) -> DataFrame:
        parts = ["date_format(date_time, 'yyyy-MM-dd') AS dt", "date_format(date_time, 'HH:mm') AS hm"]
        return bid.selectExpr("auction", "bidder", "price", "date_time", "extra", *parts)

    return logged


@query()
def q13(pipeline: Pipeline, bid: Stream) -> Stream:
    """Each bid with what a table says of it."""

    @pipeline.stage(bid)
    def keyed(bid: DataFrame) -> DataFrame:
        return bid.selectExpr("auction", "bidder", "price", "date_time", "auction % 10000 AS key")

    return keyed.join(table=SIDE_INPUT, on="key", uid="joined")


@query()
def q14(pipeline: Pipeline, bid: Stream) -> Stream:
    """Bids in a range of prices, with what can be computed of each."""

    @pipeline.stage(bid)
    def computed(bid: DataFrame) -> DataFrame:
        chosen = bid.where("0.908 * price > 1000000 AND 0.908 * price < 50000000")
        price = "CAST(0.908 * price AS DECIMAL(23, 3)) AS price"
        other = "WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time"
        time = f"CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime' {other}"
        count = "length(extra) - length(replace(extra, 'c')) AS c_counts"
        return chosen.selectExpr("auction", "bidder", price, time, "date_time", "extra", count)

    return computed


@query()
def q21(pipeline: Pipeline, bid: Stream) -> Stream:
    """The number of each bid's channel: of those that have one."""

    @pipeline.stage(bid)
    def numbered(bid: DataFrame) -> DataFrame:
        known = "CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' "
        told = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
        channel_id = f"{known} WHEN 'baidu' THEN '3' ELSE {told} END AS channel_id"
        return bid.selectExpr("auction", "bidder", "price", "channel", channel_id).where("channel_id IS NOT NULL")

    return numbered


@query()
def q22(pipeline: Pipeline, bid: Stream) -> Stream:
    """The folders of each bid's address."""

    @pipeline.stage(bid)
    def folders(bid: DataFrame) -> DataFrame:
        parts = [f"split_part(url, '/', {place}) AS dir{place - 3}" for place in (4, 5, 6)]
        return bid.selectExpr("auction", "bidder", "price", "channel", *parts)

    return folders
