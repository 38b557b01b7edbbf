"""Nexmark's stateless queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.nexmark.query import SIDE_INPUT, query

if TYPE_CHECKING:
    from tidegate.pipeline import Stream


@query()
def q0(bid: Stream) -> Stream:
    """All bids unchanged, to measure the overhead."""
    return bid.select("auction", "bidder", "price", "date_time", "extra")


@query()
def q1(bid: Stream) -> Stream:
    """Prices in euros."""
    price = "CAST(0.908 * price AS DECIMAL(23, 3)) AS price"
    return bid.select("auction", "bidder", price, "date_time", "extra")


@query()
def q2(bid: Stream) -> Stream:
    """Bids for every 123rd auction."""
    return bid.select("auction", "price", where="auction % 123 = 0")


@query(partition_by=["dt", "hm"])
def q10(bid: Stream) -> Stream:
    """All bids in files by day and minute."""
    parts = ["date_format(date_time, 'yyyy-MM-dd') AS dt", "date_format(date_time, 'HH:mm') AS hm"]
    return bid.select("auction", "bidder", "price", "date_time", "extra", *parts)


@query()
def q13(bid: Stream) -> Stream:
    """Each bid with a value that is looked up in a table."""
    keyed = bid.select("auction", "bidder", "price", "date_time", "auction % 10000 AS key")
    return keyed.join(table=SIDE_INPUT, on="key", uid="joined")


@query()
def q14(bid: Stream) -> Stream:
    """Bids in a range of prices, with computed columns."""
    chosen = "0.908 * price > 1000000 AND 0.908 * price < 50000000"
    price = "CAST(0.908 * price AS DECIMAL(23, 3)) AS price"
    other = "WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time"
    time = f"CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime' {other}"
    count = "length(extra) - length(replace(extra, 'c')) AS c_counts"
    return bid.select("auction", "bidder", price, time, "date_time", "extra", count, where=chosen)


@query()
def q21(bid: Stream) -> Stream:
    """The number of each bid's channel, for channels that have one."""
    known = "CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' "
    told = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
    channel_id = f"{known} WHEN 'baidu' THEN '3' ELSE {told} END AS channel_id"
    return bid.select("auction", "bidder", "price", "channel", channel_id).where("channel_id IS NOT NULL")


@query()
def q22(bid: Stream) -> Stream:
    """The folders of each bid's address."""
    parts = [f"split_part(url, '/', {place}) AS dir{place - 3}" for place in (4, 5, 6)]
    return bid.select("auction", "bidder", "price", "channel", *parts)
