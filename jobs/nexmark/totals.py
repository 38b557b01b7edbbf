"""Nexmark's queries that keep totals or a few rows per key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.nexmark.query import query

if TYPE_CHECKING:
    from tidegate.pipeline import Stream

DAY = "date_format(date_time, 'yyyy-MM-dd') AS day"
PRICES = {"rank1": "price < 10000", "rank2": "price >= 10000 and price < 1000000", "rank3": "price >= 1000000"}
RANKS = {"total": ""} | {rank: f" filter (where {price})" for rank, price in PRICES.items()}
BIDS = {f"{rank}_bids": f"count(*){which}" for rank, which in RANKS.items()}
BIDDERS = {f"{rank}_bidders": f"count(distinct bidder){which}" for rank, which in RANKS.items()}
AUCTIONS = {f"{rank}_auctions": f"count(distinct auction){which}" for rank, which in RANKS.items()}


@query(keys=["day"])
def q15(bid: Stream) -> Stream:
    """The number of bids, bidders and auctions per day, in total and by price."""
    return bid.select("*", DAY).aggregate(by="day", **BIDS, **BIDDERS, **AUCTIONS, uid="totals")


@query(keys=["channel", "day"])
def q16(bid: Stream) -> Stream:
    """The same per channel, with the minute of its last bid."""
    found = {"minute": "max(date_format(date_time, 'HH:mm'))", **BIDS, **BIDDERS, **AUCTIONS}
    return bid.select("*", DAY).aggregate(by=["channel", "day"], **found, uid="totals")


@query(keys=["auction", "day"])
def q17(bid: Stream) -> Stream:
    """The number of bids per auction and day, and their prices."""
    prices = {f"{name}_price": f"{name}(price)" for name in ("min", "max", "avg", "sum")}
    return bid.select("*", DAY).aggregate(by=["auction", "day"], **BIDS, **prices, uid="totals")


@query(keys=["bidder", "auction"])
def q18(bid: Stream) -> Stream:
    """The last bid of each bidder in each auction."""
    return bid.latest(by=["bidder", "auction"], order_by=["date_time", "price", "extra"], uid="last")


@query(keys=["auction", "rank"])
def q19(bid: Stream) -> Stream:
    """The ten highest bids for each auction."""
    return bid.top_n(10, by="auction", order_by=["price desc", "date_time asc", "extra asc"], uid="highest")
