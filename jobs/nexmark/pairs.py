"""Queries of Nexmark that put rows together: of persons and auctions, of auctions and bids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.nexmark.query import query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate import Pipeline
    from tidegate.pipeline import Stream


def in_time(pipeline: Pipeline, auction: Stream, bid: Stream) -> Stream:
    """Return the auctions with each bid that came while they were open, which none is for more than ten seconds."""
    pairs = auction.join(bid, on={"id": "auction"}, within=("0 s", "10 s"), prefix="bid_", uid="pairs")

    @pipeline.stage(pairs)
    def valid(pairs: DataFrame) -> DataFrame:
        return pairs.where("bid_date_time <= expires")

    return valid


def winning(pipeline: Pipeline, auction: Stream, bid: Stream) -> Stream:
    """Return each auction with the highest bid that it had while it was open, of such bids the first."""
    order = ["price desc", "bid_date_time asc", "bid_extra asc"]
    first = in_time(pipeline, auction, bid).top_n(1, by=["seller", "id"], order_by=order, uid="winning")

    @pipeline.stage(first)
    def unranked(first: DataFrame) -> DataFrame:
        return first.drop("rank", "channel", "url")

    return unranked


@query()
def q3(pipeline: Pipeline, person: Stream, auction: Stream) -> Stream:
    """Who sells in category 10, and lives in Oregon, Idaho or California."""

    @pipeline.stage(person)
    def near(person: DataFrame) -> DataFrame:
        return person.where("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state")

    @pipeline.stage(auction)
    def offers(auction: DataFrame) -> DataFrame:
        return auction.where("category = 10").select("id", "seller")

    return offers.join(near, on={"seller": "id"}, uid="sellers")


@query(keys=["category"])
def q4(pipeline: Pipeline, auction: Stream, bid: Stream) -> Stream:
    """The average of the highest bids in each category."""
    highest = in_time(pipeline, auction, bid).aggregate(by=["id", "category"], final="max(price)", uid="highest")
    return highest.aggregate(by="category", final="avg(final)", uid="averages")


@query(keys=["seller"])
def q6(pipeline: Pipeline, auction: Stream, bid: Stream) -> Stream:
    """The average of the highest bids in the ten auctions of each seller that ended last."""
    won = winning(pipeline, auction, bid)
    last = won.top_n(10, by="seller", order_by=["expires desc", "id desc"], uid="last")
    return last.aggregate(by="seller", average="avg(price)", uid="averages")


@query(keys=["id"])
def q9(pipeline: Pipeline, auction: Stream, bid: Stream) -> Stream:
    """Each auction with its winning bid."""
    return winning(pipeline, auction, bid)


@query()
def q20(pipeline: Pipeline, auction: Stream, bid: Stream) -> Stream:
    """Each bid with its auction, of those in category 10."""

    @pipeline.stage(auction)
    def offers(auction: DataFrame) -> DataFrame:
        return auction.where("category = 10")

    return bid.join(offers, on={"auction": "id"}, prefix="auction_", uid="expanded")
