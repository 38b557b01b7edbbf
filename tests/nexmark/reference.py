"""What each query of Nexmark must give: DuckDB's SQL over all events at once, compared to the row.

Late rows and windows that are still open are computed, not left out of the comparison:

late   A row's file says in which checkpoint it was read, and the files before say how far the watermark was by then:
       the newest row of the same kind, less four seconds. So `before` is a column of each bid. A bid is not in a window
       that had ended by then (`window_end <= before`; a session includes its end: `<`), nor in a pair if it was older
       than the watermark of the join (`date_time < before`, of both sides the least).
open   At the end the watermark is the newest row less four seconds, and windows that end later are not given. An engine
       that ends event time with its input gives all of them: `closing="all"`.

Rivals judge lateness by other moments than the begin of a checkpoint, so they only get events of which none is late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import duckdb

from jobs.nexmark.generator import KINDS

__all__ = ["REFERENCE", "Closing", "Reference"]

Closing = Literal["ours", "streaming", "all"]
"""Which windows are given at the end: those that end by the watermark, but sessions that end before it; sessions as the
others; all."""

_STATISTICS: Final = ", ".join(
    f"count({what}) FILTER (WHERE {where}) AS {rank}_{name}"
    for name, what in (("bids", "*"), ("bidders", "DISTINCT bidder"), ("auctions", "DISTINCT auction"))
    for rank, where in (
        ("total", "true"),
        ("rank1", "price < 10000"),
        ("rank2", "price >= 10000 AND price < 1000000"),
        ("rank3", "price >= 1000000"),
    )
)
_BIDS: Final = ", ".join(_STATISTICS.split(", ")[:4])
_DAY: Final = "strftime(date_time, '%Y-%m-%d') AS day"
_SECONDS: Final = "floor(epoch(date_time) / {0})::BIGINT * {0}"
_TUMBLING: Final = f"to_timestamp({_SECONDS.format(10)})"
_IN_TIME: Final = """(
    SELECT a.*, b.bidder, b.price, b.date_time AS bid_date_time, b.extra AS bid_extra
    FROM auction a JOIN bid b ON a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires
    WHERE NOT coalesce(b.date_time < b.before_pair, false)
)"""
_WINNING: Final = f"""(
    SELECT * FROM {_IN_TIME}
    QUALIFY row_number() OVER (PARTITION BY id ORDER BY price DESC, bid_date_time, bid_extra) = 1
)"""

REFERENCE: Final[Mapping[str, str]] = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT category, avg(final) AS final FROM (
        SELECT id, category, max(price) AS final FROM {_IN_TIME} GROUP BY id, category) GROUP BY category""",
    "q5": f"""WITH bids AS (
            SELECT auction, before, to_timestamp({_SECONDS.format(2)} - step * 2) AS window_start,
                to_timestamp({_SECONDS.format(2)} - step * 2 + 10) AS window_end
            FROM bid, range(5) AS steps(step)),
        counts AS (SELECT window_start, window_end, auction, count(*) AS num FROM bids
            WHERE NOT coalesce(window_end <= before, false) AND window_end <= (SELECT bid FROM closed)
            GROUP BY window_start, window_end, auction)
        SELECT * FROM counts QUALIFY num = max(num) OVER (PARTITION BY window_end)""",
    "q6": f"""SELECT seller, avg(price) AS average FROM (SELECT * FROM {_WINNING}
        QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) <= 10) GROUP BY seller""",
    "q7": f"""WITH best AS (
            SELECT max(price) AS price, {_TUMBLING} + INTERVAL 10 SECOND AS window_end FROM bid
            WHERE NOT coalesce({_TUMBLING} + INTERVAL 10 SECOND <= before, false) GROUP BY window_end
            HAVING window_end <= (SELECT bid FROM closed))
        SELECT b.auction, b.price, b.bidder, b.date_time, b.extra FROM bid b JOIN best ON b.price = best.price
            AND b.date_time BETWEEN best.window_end - INTERVAL 10 SECOND AND best.window_end
        WHERE NOT coalesce(b.date_time < b.before - INTERVAL 10 SECOND, false)""",
    "q8": f"""SELECT p.id, p.name, p.window_start
        FROM (SELECT DISTINCT id, name, {_TUMBLING} AS window_start FROM person) p
        JOIN (SELECT DISTINCT seller, {_TUMBLING} AS window_start FROM auction) a
            ON p.id = a.seller AND p.window_start = a.window_start
        WHERE p.window_start + INTERVAL 10 SECOND <= (SELECT least(person, auction) FROM closed)""",
    "q9": f"""SELECT id, item, description, initial_bid, reserve, date_time, expires, seller, category, extra, bidder,
        price, bid_date_time, bid_extra FROM {_WINNING}""",
    "q10": """SELECT auction, bidder, price, date_time, extra, strftime(date_time, '%Y-%m-%d') AS dt,
        strftime(date_time, '%H:%M') AS hm FROM bid""",
    "q11": """WITH bids AS (SELECT bidder, date_time FROM bid
            WHERE NOT coalesce(date_time + INTERVAL 10 SECOND < before, false)),
        begun AS (SELECT *, coalesce(date_time - lag(date_time) OVER of_bidder > INTERVAL 10 SECOND, true) AS begins
            FROM bids WINDOW of_bidder AS (PARTITION BY bidder ORDER BY date_time)),
        numbered AS (SELECT *, sum(begins::INT) OVER (PARTITION BY bidder ORDER BY date_time) AS session FROM begun)
        SELECT min(date_time) AS window_start, max(date_time) + INTERVAL 10 SECOND AS window_end, bidder,
            count(*) AS bid_count FROM numbered GROUP BY bidder, session
        HAVING max(date_time) + INTERVAL 10 SECOND <= (SELECT session FROM closed)""",
    "q12": "SELECT bidder, window_start, count(*) AS bid_count FROM bid JOIN clock USING (cut) GROUP BY ALL",
    "q13": """SELECT b.auction, b.bidder, b.price, b.date_time, s.value FROM bid b
        JOIN side_input s ON b.auction % 10000 = s.key""",
    "q14": """SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
        CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS time,
        date_time, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {_DAY}, {_STATISTICS} FROM bid GROUP BY day",
    "q16": f"""SELECT channel, {_DAY}, max(strftime(date_time, '%H:%M')) AS minute, {_STATISTICS} FROM bid
        GROUP BY channel, day""",
    "q17": f"""SELECT auction, {_DAY}, {_BIDS}, min(price) AS min_price, max(price) AS max_price,
        avg(price) AS avg_price, sum(price)::BIGINT AS sum_price FROM bid GROUP BY auction, day""",
    "q18": """SELECT auction, bidder, price, channel, url, date_time, extra FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, price DESC, extra DESC) = 1""",
    "q19": """SELECT auction, bidder, price, channel, url, date_time, extra,
        row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, extra) AS rank FROM bid
        QUALIFY rank <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra, a.item, a.description,
        a.initial_bid, a.reserve, a.date_time AS auction_date_time, a.expires, a.seller, a.category,
        a.extra AS auction_extra FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10""",
    "q21": """SELECT * FROM (SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0'
            WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id FROM bid)
        WHERE channel_id IS NOT NULL""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
        split_part(url, '/', 6) AS dir3 FROM bid""",
}


@dataclass
class Reference:
    """All events in one database, with what is known of them."""

    landing: Path
    checkpoints: int
    """As many as there are cuts, or one."""
    closing: Closing = "ours"
    database: Any = field(default_factory=duckdb.connect, init=False)

    def __post_init__(self) -> None:
        do = self.database.execute
        do("SET TimeZone = 'UTC'")
        cut = "0" if self.checkpoints == 1 else "regexp_extract(filename, '([0-9]+)(-[0-9]+)?[.]parquet', 1)::INT"
        for kind in KINDS:
            files = f"read_parquet('{self.landing}/{kind}/*.parquet', filename = true)"
            do(f"CREATE VIEW {kind}_read AS SELECT * EXCLUDE (filename), {cut} AS cut FROM {files}")
        newest = " UNION ALL ".join(
            f"SELECT '{kind}' AS kind, cut, max(date_time) AS newest FROM {kind}_read GROUP BY cut" for kind in KINDS
        )
        before = ", ".join(
            f"max(newest) FILTER (WHERE kind = '{kind}' AND m.cut < c.cut) - INTERVAL 4 SECOND AS {kind}"
            for kind in KINDS
        )
        do(f"CREATE TABLE newest AS {newest}")
        do("CREATE TABLE cuts AS SELECT DISTINCT cut FROM newest")
        do(f"CREATE TABLE before AS SELECT c.cut, {before} FROM cuts c, newest m GROUP BY c.cut")
        do("CREATE VIEW person AS FROM person_read")
        do("CREATE VIEW auction AS FROM auction_read")
        pair = "CASE WHEN b.auction IS NOT NULL AND b.bid IS NOT NULL THEN least(b.auction, b.bid) END"
        known = f"SELECT r.*, b.bid AS before, {pair} AS before_pair FROM bid_read r JOIN before b USING (cut)"
        do(f"CREATE VIEW bid AS {known}")
        margin = "INTERVAL 1 MICROSECOND" if self.closing == "ours" else "INTERVAL 0 SECOND"
        ends = ", ".join(f"max(newest) FILTER (WHERE kind = '{kind}') - INTERVAL 4 SECOND AS {kind}" for kind in KINDS)
        ends = f"SELECT {ends} FROM newest"
        if self.closing == "all":
            ends = "SELECT " + ", ".join(f"TIMESTAMPTZ '9999-01-01 00:00:00Z' AS {kind}" for kind in KINDS)
        do(f"CREATE TABLE closed AS SELECT *, bid - {margin} AS session FROM ({ends})")

    def side_input(self, rows: Any) -> None:
        """Take the table that q13 looks up."""
        self.database.register("side_input", rows)

    def clock(self, starts: Sequence[Any]) -> None:
        """Take the ten seconds of the clock in which each cut was planned, for q12."""
        self.database.execute("CREATE OR REPLACE TABLE clock (cut INT, window_start TIMESTAMPTZ)")
        self.database.executemany("INSERT INTO clock VALUES (?, ?)", list(enumerate(starts)))

    def differs(self, query: str, found: Any, sql: str | None = None) -> str:
        """Say what the rows found (an Arrow table) and those expected do not share; "" for equal. sql: expect these."""
        self.database.register("found", found)
        wanted = f"({sql or REFERENCE[query]})"
        columns = [name for name, _ in self.columns(f"SELECT * FROM {wanted}")]
        missing = [name for name in columns if name not in found.schema.names]
        if missing:
            return f"there is no column {', '.join(missing)}, only {', '.join(found.schema.names)}"
        listed = ", ".join(columns)
        ours, theirs = f"SELECT {listed} FROM found", f"SELECT {listed} FROM {wanted}"
        for what, first, second in (("missing", theirs, ours), ("too much", ours, theirs)):
            rows = self.rows(f"SELECT *, count(*) OVER () AS n FROM ({first} EXCEPT ALL {second}) LIMIT 3")
            if rows:
                return f"{rows[0][-1]} rows {what}, such as {[row[:-1] for row in rows]}"
        return ""

    def arrow(self, sql: str) -> Any:
        """Return what an SQL query gives as an Arrow table."""
        return self.database.sql(sql).to_arrow_table()

    def sql(self, query: str) -> str:
        """Return the reference of a query."""
        return REFERENCE[query]

    def columns(self, sql: str) -> list[tuple[str, str]]:
        """Return the names and types of a query's columns."""
        return [(row[0], row[1]) for row in self.rows(f"DESCRIBE {sql}")]

    def count(self, query: str) -> int:
        """Return how many rows there must be."""
        return int(self.rows(f"SELECT count(*) FROM ({REFERENCE[query]})")[0][0])

    def events(self) -> int:
        """Return how many events there are."""
        return sum(int(self.rows(f"SELECT count(*) FROM {kind}_read")[0][0]) for kind in KINDS)

    def rows(self, sql: str) -> list[Any]:
        """Return the rows of an SQL query over the events."""
        return list(self.database.execute(sql).fetchall())
