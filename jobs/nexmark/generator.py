"""Writes the events of Nexmark, an online auction house, as Parquet files, for `jobs/nexmark` and for other engines.

    python -m jobs.nexmark.generator --events 1000000 --cuts 10

Of 50 events, one is a new person, three are new auctions and 46 are bids. Half of the bids are for 1 % of the auctions,
three in four are by 1 % of the bidders, and three auctions in four are by 1 % of the sellers. Prices are spread evenly
over six powers of ten. An event may refer to one of the ten persons or auctions that follow it. All of that is as in
the public specification, whose own generator draws other numbers; the average length of strings is the same.

Event n happens at START + n / 10,000 s (`rate`). One in ten arrives later, by up to 3 s, so that no row is late with a
watermark of 4 s. `late` delays that share of the bids by 40 to 50 s instead, so that they are late. No auction is open
for more than 10 s. The events are cut into files with the same number of events, one for each of the three kinds:
landing/bid/0003.parquet is the fourth cut. The content of all files together does not depend on the number of cuts.

It also writes the table that q13 looks up, tables/side_input, next to `landing`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs.nexmark.query import SIDE_INPUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

__all__ = ["KINDS", "Events", "side_input"]

KINDS = ("person", "auction", "bid")
START = 1_767_225_600_000_000
"""The beginning of 2026, in microseconds since 1970."""
PERSONS, AUCTIONS, ROUND = 1, 3, 50
"""A round of 50 events begins with a person and three auctions; the rest are bids."""
FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
ACTIVE_PERSONS, OPEN_AUCTIONS, AHEAD, HOT = 1000, 100, 10, 100
DELAYED, DELAY_S = 0.1, 3
"""The share of events that arrive later than they happen, and the maximum delay."""
LATE_S = 40, 50
"""The range of delays of late events, longer than any window of the queries and the watermark together."""
CHUNK = 50_000
"""The number of events that are drawn at a time, with a seed per chunk."""
LONGEST_MS = 10_000
"""The limit of an auction's duration, which is at most twice the time in which OPEN_AUCTIONS arrive."""

STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent"]
CITIES += ["Cheyenne"]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Events:
    """A stream of events, which only depends on its seed and parameters."""

    count: int
    seed: int = 1
    rate: int = 10_000
    """The number of events per second."""
    late: float = 0.0

    def write(self, landing: Path, cuts: int = 1, parts: int = 1) -> None:
        """Write files for each of the cuts: landing/person/0000.parquet, and so on. parts: the number of files into
        which a cut's rows are split, in order of arrival; they are then named 0000-0.parquet."""
        for kind in KINDS:
            (landing / kind).mkdir(parents=True, exist_ok=True)
        for number, tables in enumerate(self.cut(cuts)):
            for kind, table in tables.items():
                bounds = [table.num_rows * part // parts for part in range(parts + 1)]
                for part, (begin, end) in enumerate(itertools.pairwise(bounds)):
                    name = f"{number:04d}-{part}" if parts > 1 else f"{number:04d}"
                    pq.write_table(table.slice(begin, end - begin), landing / kind / f"{name}.parquet")

    def cut(self, cuts: int) -> Iterator[dict[str, pa.Table]]:
        """Yield the events of each cut, by kind, in order of arrival."""
        web = _web_addresses(np.random.default_rng(self.seed))
        waiting: dict[str, list[pa.Table]] = {kind: [] for kind in KINDS}
        drawn = 0
        for number in range(cuts):
            upto = self.count * (number + 1) // cuts
            while drawn < upto:
                size = min(CHUNK, self.count - drawn)
                for kind, table in self._draw(drawn, size, web).items():
                    waiting[kind].append(table)
                drawn += size
            tables = {}
            for kind in KINDS:
                rows = pa.concat_tables(waiting[kind])
                is_here = pc.less(rows["_comes"], upto) if number < cuts - 1 else pa.scalar(True)
                tables[kind] = _in_order(rows.filter(is_here) if number < cuts - 1 else rows)
                waiting[kind] = [rows.filter(pc.invert(is_here))] if number < cuts - 1 else []
            yield tables

    def _draw(self, begin: int, size: int, web: tuple[pa.Array, pa.Array]) -> dict[str, pa.Table]:
        """Return `size` events from number `begin` on, a multiple of CHUNK."""
        random = np.random.default_rng((self.seed, begin))
        number = np.arange(begin, begin + size)
        delay = random.integers(1, DELAY_S * self.rate + 1, size) * (random.random(size) < DELAYED)
        is_late = random.random(size) < self.late
        place = number % ROUND
        kinds = {
            "person": place < PERSONS,
            "auction": (place >= PERSONS) & (place < PERSONS + AUCTIONS),
            "bid": place >= PERSONS + AUCTIONS,
        }
        long_delay = random.integers(*(seconds * self.rate for seconds in LATE_S), size)
        is_late &= kinds["bid"] & (number + long_delay < self.count)
        delay = np.where(is_late, long_delay, delay)
        longest = min(2 * OPEN_AUCTIONS * ROUND * 1000 // (AUCTIONS * self.rate), LONGEST_MS)
        tables = {}
        for kind, chosen in kinds.items():
            millis = number[chosen] * 1000 // self.rate
            if kind == "person":
                columns = _persons(random, number[chosen], millis)
            elif kind == "auction":
                columns = _auctions(random, number[chosen], millis, longest)
            else:
                columns = _bids(random, number[chosen], millis, web)
            columns["_comes"] = pa.array((number + delay)[chosen])
            columns["_number"] = pa.array(number[chosen])
            tables[kind] = pa.table(columns)
        return tables


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("_comes", "ascending"), ("_number", "ascending")]).drop_columns(["_comes", "_number"])


def _persons(random: np.random.Generator, number: Numbers, millis: Numbers) -> dict[str, Any]:
    count = len(number)
    name = _joined([_one_of(random, FIRST_NAMES, count), _one_of(random, LAST_NAMES, count)], " ")
    mail = _joined([_words(random, count, 3, 7), _words(random, count, 3, 5)], "@")
    digits = pa.array([f"{n:04d}" for n in range(10_000)])
    card = _joined([digits.take(pa.array(random.integers(0, 10_000, count))) for _ in range(4)], " ")
    return {
        "id": pa.array(_last_person(number) + FIRST_ID),
        "name": name,
        "email": _joined([mail, pa.scalar("com")], "."),
        "credit_card": card,
        "city": _one_of(random, CITIES, count),
        "state": _one_of(random, STATES, count),
        "date_time": _times(millis),
        "extra": _words(random, count, 90, 134),
    }


def _auctions(random: np.random.Generator, number: Numbers, millis: Numbers, longest: int) -> dict[str, Any]:
    count = len(number)
    last = _last_person(number)
    is_hot = random.integers(0, 4, count) > 0
    first_price = _prices(random, count)
    lasts = 1 + random.integers(0, longest, count)
    return {
        "id": pa.array(_last_auction(number) + FIRST_ID),
        "item": _words(random, count, 3, 20, special=" "),
        "description": _words(random, count, 3, 100, special=" "),
        "initial_bid": pa.array(first_price),
        "reserve": pa.array(first_price + _prices(random, count)),
        "date_time": _times(millis),
        "expires": _times(millis + lasts),
        "seller": pa.array(np.where(is_hot, last // HOT * HOT, _active_person(random, last)) + FIRST_ID),
        "category": pa.array(FIRST_CATEGORY + random.integers(0, CATEGORIES, count)),
        "extra": _words(random, count, 310, 470),
    }


def _bids(
    random: np.random.Generator, number: Numbers, millis: Numbers, web: tuple[pa.Array, pa.Array]
) -> dict[str, Any]:
    count = len(number)
    person, auction = _last_person(number), _last_auction(number)
    oldest = np.maximum(auction - OPEN_AUCTIONS, 0)
    any_auction = oldest + (random.random(count) * (auction - oldest + 1 + AHEAD)).astype(np.int64)
    auction = np.where(random.integers(0, 2, count) > 0, auction // HOT * HOT, any_auction)
    is_hot = random.integers(0, 4, count) > 0
    bidder = np.where(is_hot, person // HOT * HOT + 1, _active_person(random, person))
    is_hot = random.integers(0, 2, count) > 0
    hot, other = random.integers(0, len(HOT_CHANNELS), count), random.integers(0, CHANNELS, count)
    channel = pa.array(np.where(is_hot, hot, len(HOT_CHANNELS) + other))
    return {
        "auction": pa.array(auction + FIRST_ID),
        "bidder": pa.array(bidder + FIRST_ID),
        "price": pa.array(_prices(random, count)),
        "channel": web[0].take(channel),
        "url": web[1].take(channel),
        "date_time": _times(millis),
        "extra": _words(random, count, 54, 81),
    }


def _times(millis: Numbers) -> pa.Array:
    return pa.array(START + millis * 1000, TIME)


def _last_person(number: Numbers) -> Numbers:
    """Return the newest person when an event happens, counted from 0."""
    return number // ROUND * PERSONS + np.minimum(number % ROUND, PERSONS - 1)


def _last_auction(number: Numbers) -> Numbers:
    """Return the newest auction when an event happens, counted from 0. For a person's event, that of the previous
    round: in the first round -1, which no auction or bid uses.
    """
    return number // ROUND * AUCTIONS + np.minimum(number % ROUND - PERSONS, AUCTIONS - 1)


def _active_person(random: np.random.Generator, last: Numbers) -> Numbers:
    """Return one of the newest persons, or of those that follow soon."""
    active = np.minimum(last + 1, ACTIVE_PERSONS)
    drawn = random.random(len(last)) * (active + AHEAD)
    return last + 1 - active + drawn.astype(np.int64)


def _prices(random: np.random.Generator, count: int) -> Numbers:
    return np.round(10.0 ** (random.random(count) * 6) * 100).astype(np.int64)


def _one_of(random: np.random.Generator, words: Sequence[str], count: int) -> pa.Array:
    return pa.array(words).take(pa.array(random.integers(0, len(words), count)))


def _words(random: np.random.Generator, count: int, least: int, most: int, special: str = "") -> pa.Array:
    """Return texts of `least` up to `most` letters. special: a letter that makes up one in 13."""
    ends = np.concatenate([[0], np.cumsum(random.integers(least, most + 1, count))]).astype(np.int32)
    letters = random.integers(97, 123, ends[-1], dtype=np.uint8)
    if special:
        letters[random.integers(0, 13, ends[-1]) == 0] = ord(special)
    texts = pa.StringArray.from_buffers(count, pa.py_buffer(ends.tobytes()), pa.py_buffer(letters.tobytes()))
    return pc.utf8_trim(texts, special) if special else texts


def _joined(texts: Sequence[Any], between: str) -> Any:
    return pc.binary_join_element_wise(*texts, between)


def _web_addresses(random: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    """Return the names of all channels, and the URL of each one's bids, hot channels first."""
    names = [*HOT_CHANNELS, *(f"channel-{n}" for n in range(CHANNELS))]
    folders = [_words(random, len(names), 3, 5, special="_").to_pylist() for _ in range(3)]
    has_id = random.integers(0, 10, len(names)) > 0
    urls = []
    for place, parts in enumerate(zip(*folders, strict=True)):
        url = f"https://www.nexmark.com/{'/'.join(parts)}/item.htm?query=1"
        if place >= len(HOT_CHANNELS) and has_id[place]:
            url += f"&channel_id={(place * 2_654_435_761) % 2**31}"
        urls.append(url)
    return pa.array(names), pa.array(urls)


def side_input() -> pa.Table:
    """Return the table that q13 looks up: a value for each key from 0 to 9999."""
    keys = range(10_000)
    return pa.table({"key": pa.array(keys, pa.int64()), "value": [f"value {key}" for key in keys]})


def main() -> None:
    """Write the requested events, and the table that q13 looks up."""
    from deltalake import write_deltalake

    parser = argparse.ArgumentParser(prog="python -m jobs.nexmark.generator", description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="how many; 1000000")
    parser.add_argument("--cuts", type=int, default=10, help="files of each kind; 10")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the random numbers; 1")
    parser.add_argument("--rate", type=int, default=10_000, help="events per second; 10000")
    parser.add_argument("--late", type=float, default=0.0, help="the share of bids that arrive at least 40 s late; 0")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("data/landing"),
        help="where to write, with q13's table next to it; data/landing",
    )
    given = parser.parse_args()
    Events(given.events, given.seed, given.rate, given.late).write(given.out, given.cuts)
    write_deltalake(given.out.parent / SIDE_INPUT, side_input(), mode="overwrite")


if __name__ == "__main__":
    main()
