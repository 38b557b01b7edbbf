"""Nexmark's queries over windows of time. Each window is emitted once, when it is complete; in q12 per checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.nexmark.query import query

if TYPE_CHECKING:
    from tidegate.pipeline import Stream


@query()
def q5(bid: Stream) -> Stream:
    """Every two seconds, the auctions with the most bids in the last ten seconds."""
    counts = bid.window(hopping=("10 s", "2 s"), by="auction", num="count(*)", uid="counts")
    hottest = counts.top_n(1, by=["window_start", "window_end"], order_by="num desc", rank="rank", uid="hottest")
    return hottest.select("* EXCEPT (rank)")


@query()
def q7(bid: Stream) -> Stream:
    """The highest bids of each ten seconds."""
    best = bid.window(tumbling="10 s", price="max(price)", uid="best")
    offered = bid.select("auction", "price", "bidder", "date_time", "extra")
    times = ("date_time", "window_end")
    found = offered.join(best, on="price", within=("0 s", "10 s"), event_time=times, uid="found")
    return found.select("* EXCEPT (window_start, window_end)")


@query()
def q8(person: Stream, auction: Stream) -> Stream:
    """Persons who registered and sold something within the same ten seconds."""
    came = person.window(tumbling="10 s", by=["id", "name"], persons="count(*)", uid="came")
    sold = auction.window(tumbling="10 s", by="seller", auctions="count(*)", uid="sold")
    on = {"id": "seller", "window_start": "window_start", "window_end": "window_end"}
    both = came.join(sold, on=on, within=("0 s", "0 s"), event_time="window_end", uid="both")
    return both.select("id", "name", "window_start")


@query()
def q11(bid: Stream) -> Stream:
    """The number of each bidder's bids in sessions with a gap of ten seconds."""
    return bid.window(session="10 s", by="bidder", bid_count="count(*)", uid="sessions")


@query(keys=["bidder", "window_start"])
def q12(bid: Stream) -> Stream:
    """The number of each bidder's bids in ten seconds of processing time: when checkpoints are planned."""
    return bid.window(
        tumbling="10 s", time="processing", emit="update", by="bidder", bid_count="count(*)", uid="counts"
    )
