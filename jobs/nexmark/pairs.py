"""Nexmark's queries that join persons with auctions, or auctions with bids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.nexmark.query import query

if TYPE_CHECKING:
    from tidegate.pipeline import Stream


def in_time(auction: Stream, bid: Stream) -> Stream:
    """Return the auctions with each bid that was made while they were open (at most ten seconds)."""
    pairs = auction.join(bid, on={"id": "auction"}, within=("0 s", "10 s"), prefix="bid_", uid="pairs")
    return pairs.where("bid_date_time <= expires")


def winning(auction: Stream, bid: Stream) -> Stream:
    """Return each auction with the highest bid while it was open. The first one wins a tie."""
    order = ["price desc", "bid_date_time asc", "bid_extra asc"]
    pairs = in_time(auction, bid.select("* EXCEPT (channel, url)"))
    return pairs.top_n(1, by=["seller", "id"], order_by=order, uid="winning").select("* EXCEPT (rank)")


@query()
def q3(person: Stream, auction: Stream) -> Stream:
    """Sellers in category 10 who live in Oregon, Idaho or California."""
    near = person.select("id", "name", "city", "state", where="state IN ('OR', 'ID', 'CA')")
    offers = auction.select("id", "seller", where="category = 10")
    return offers.join(near, on={"seller": "id"}, uid="sellers")


@query(keys=["category"])
def q4(auction: Stream, bid: Stream) -> Stream:
    """The average of the highest bids in each category."""
    open_for = auction.select("id", "category", "date_time", "expires")
    pairs = in_time(open_for, bid.select("auction", "price", "date_time"))
    highest = pairs.aggregate(by=["id", "category"], final="max(price)", uid="highest")
    return highest.aggregate(by="category", final="avg(final)", uid="averages")


@query(keys=["seller"])
def q6(auction: Stream, bid: Stream) -> Stream:
    """The average of the highest bids in each seller's last ten auctions."""
    won = winning(auction.select("id", "seller", "date_time", "expires", "extra"), bid)
    last = won.top_n(10, by="seller", order_by=["expires desc", "id desc"], uid="last")
    return last.aggregate(by="seller", average="avg(price)", uid="averages")


@query(keys=["seller", "id"])
def q9(auction: Stream, bid: Stream) -> Stream:
    """Each auction with its winning bid."""
    return winning(auction, bid)


@query()
def q20(auction: Stream, bid: Stream) -> Stream:
    """Each bid in category 10 with its auction."""
    offers = auction.where("category = 10")
    return bid.join(offers, on={"auction": "id"}, prefix="auction_", uid="expanded")
