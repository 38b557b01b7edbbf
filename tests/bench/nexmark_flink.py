"""Nexmark by Flink SQL: a cluster of a JobManager and a TaskManager with two slots, started here, and kept warm.

Flink comes from PyPI into an environment of its own, `.cache/flink` or the folder that FLINK names; it never meets the
project's. Both state backends are raced, RocksDB and the heap, with checkpoints exactly once. How many there are
follows from their interval, a tenth of what the last run took, corrected by how many that one had. The number that was
completed is reported. A job has ended when the cluster says that it had.

Its source of files reads several of them in no order, so that rows of the first would be late behind the last. So
it gets the same rows in two files, one for each slot, each in the order in which they come: every second row. Parquet
in, and Parquet out where rows are final; where rows are replaced, its sink of files can write changes as JSON only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.nexmark.generator import KINDS, side_input
from tests.bench.harness import ROOT
from tests.bench.nexmark_engines import Failed, Talk, processes
from tests.kit.waiting import eventually
from tests.nexmark.reference import Closing, Reference
from tidegate.cli.up.home import any_port
from tools import setup

__all__ = ["CANNOT", "QUERIES", "Flink", "flink", "flink_files", "installed", "is_installed"]

VERSION = "2.3.0"
HERE = Path(__file__).parent
SLOTS = 2
SPARK_JARS = ("hadoop-client-api", "hadoop-client-runtime", "jts-core", "parquet-", "snappy-java")
NEVER = "100 d"
"""An interval of checkpoints that no job reaches. The last checkpoint of a job needs none."""
COLD_S, COLD_EVENTS_PER_S = 5.0, 200_000.0
"""What the first run of a job may take, of which a tenth is its interval: 5 s, and these events in a second."""
LEAST_S = 0.02
"""The shortest interval."""
POLL_S = 0.2
STANDS_STILL = "6 h"
"""For how long processes may not hear of each other: between its turns the whole cluster stands still."""
CONFIG = {
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",  # this, and what follows, as Nexmark's own configuration for Flink
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.incremental": "true",
    "restart-strategy.type": "none",
    "parallelism.default": str(SLOTS),
}

_STATISTICS = ", ".join(
    f"COUNT({what}) FILTER (WHERE {where}) AS {rank}_{name}" if where else f"COUNT({what}) AS {rank}_{name}"
    for name, what in (("bids", "*"), ("bidders", "DISTINCT bidder"), ("auctions", "DISTINCT auction"))
    for rank, where in (
        ("total", ""),
        ("rank1", "price < 10000"),
        ("rank2", "price >= 10000 AND price < 1000000"),
        ("rank3", "price >= 1000000"),
    )
)
_BIDS = ", ".join(_STATISTICS.split(", ")[:4])
_DAY = "DATE_FORMAT(date_time, 'yyyy-MM-dd')"
_PAIRS = """(
    SELECT A.*, B.bidder, B.price, CAST(B.date_time AS TIMESTAMP(3)) AS bid_date_time, B.extra AS bid_extra
    FROM auction A, bid B
    WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.date_time + INTERVAL '10' SECOND
        AND B.date_time <= A.expires
)"""
_WINNING = f"""(
    SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY price DESC, bid_date_time, bid_extra) AS place
        FROM {_PAIRS}) WHERE place <= 1
)"""


def _window(shape: str, table: str) -> str:
    return f"TABLE({shape.replace('(', f'(TABLE {table}, DESCRIPTOR(date_time), ', 1)})"


_HOP = _window("HOP(INTERVAL '2' SECOND, INTERVAL '10' SECOND)", "bid")
_COUNTS = f"""(SELECT window_start, window_end, auction, COUNT(*) AS num FROM {_HOP}
    GROUP BY window_start, window_end, auction)"""

QUERIES: Mapping[str, str] = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, date_time, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT category, AVG(CAST(highest AS DOUBLE)) AS final FROM (
        SELECT id, category, MAX(price) AS highest FROM {_PAIRS} GROUP BY id, category) GROUP BY category""",
    "q5": f"""SELECT C.window_start, C.window_end, C.auction, C.num FROM {_COUNTS} C JOIN (
            SELECT window_start, window_end, MAX(num) AS most FROM {_COUNTS} GROUP BY window_start, window_end) M
        ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num >= M.most""",
    "q6": f"""SELECT seller, AVG(CAST(price AS DOUBLE)) AS average FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY seller ORDER BY expires DESC, id DESC) AS turn FROM {_WINNING})
        WHERE turn <= 10 GROUP BY seller""",
    "q7": f"""SELECT B.auction, B.price, B.bidder, B.date_time, B.extra FROM bid B JOIN (
            SELECT MAX(price) AS highest, window_end AS ends
            FROM {_window("TUMBLE(INTERVAL '10' SECOND)", "bid")} GROUP BY window_start, window_end) M
        ON B.price = M.highest WHERE B.date_time BETWEEN M.ends - INTERVAL '10' SECOND AND M.ends""",
    "q8": f"""SELECT P.id, P.name, P.window_start FROM (
            SELECT id, name, window_start, window_end FROM {_window("TUMBLE(INTERVAL '10' SECOND)", "person")}
            GROUP BY id, name, window_start, window_end) P
        JOIN (SELECT seller, window_start, window_end FROM {_window("TUMBLE(INTERVAL '10' SECOND)", "auction")}
            GROUP BY seller, window_start, window_end) A
        ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end""",
    "q9": f"""SELECT id, item, description, initial_bid, reserve, date_time, expires, seller, category, extra, bidder,
        price, bid_date_time, bid_extra FROM {_WINNING}""",
    "q10": f"""SELECT auction, bidder, price, date_time, extra, {_DAY} AS dt,
        DATE_FORMAT(date_time, 'HH:mm') AS hm FROM bid""",
    "q11": """SELECT window_start, window_end, bidder, COUNT(*) AS bid_count
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q13": """SELECT B.auction, B.bidder, B.price, B.date_time, S.`value` FROM bid B
        JOIN side_input S ON MOD(B.auction, 10000) = S.key""",
    "q14": """SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
        CASE WHEN HOUR(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS `time`,
        date_time, extra, CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT {_DAY} AS `day`, {_STATISTICS} FROM bid GROUP BY {_DAY}",
    "q16": f"""SELECT channel, {_DAY} AS `day`, MAX(DATE_FORMAT(date_time, 'HH:mm')) AS `minute`, {_STATISTICS}
        FROM bid GROUP BY channel, {_DAY}""",
    "q17": f"""SELECT auction, {_DAY} AS `day`, {_BIDS}, MIN(price) AS min_price, MAX(price) AS max_price,
        AVG(CAST(price AS DOUBLE)) AS avg_price, SUM(price) AS sum_price FROM bid GROUP BY auction, {_DAY}""",
    "q18": """SELECT auction, bidder, price, channel, url, date_time, extra FROM (SELECT *, ROW_NUMBER()
            OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, price DESC, extra DESC) AS place FROM bid)
        WHERE place <= 1""",
    "q19": """SELECT auction, bidder, price, channel, url, date_time, extra, place AS `rank` FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, date_time, extra) AS place FROM bid)
        WHERE place <= 10""",
    "q20": """SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.date_time, B.extra, A.item, A.description,
        A.initial_bid, A.reserve, CAST(A.date_time AS TIMESTAMP(3)) AS auction_date_time, A.expires, A.seller,
        A.category,
        A.extra AS auction_extra FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10""",
    "q21": """SELECT * FROM (SELECT auction, bidder, price, channel, CASE LOWER(channel) WHEN 'apple' THEN '0'
            WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE NULLIF(REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id FROM bid)
        WHERE channel_id IS NOT NULL""",
    "q22": """SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1,
        SPLIT_INDEX(url, '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3 FROM bid""",
}
CANNOT: Mapping[str, str] = {"q12": "at the end of its input it drops what its clock has not closed"}
REPLACING = ("q4", "q6", "q9", "q15", "q16", "q17", "q18", "q19")
TYPES = {"VARCHAR": "STRING", "TIMESTAMP WITH TIME ZONE": "TIMESTAMP(3)", "INTEGER": "BIGINT"}


def home_of_flink() -> Path:
    """Return the folder of the environment with PyFlink."""
    return Path(os.environ.get("FLINK", ROOT / ".cache/flink")).absolute()


def is_installed() -> bool:
    """Return whether the environment is there."""
    return (home_of_flink() / VERSION).exists()


def installed() -> Path:
    """Return the folder of an environment with PyFlink and what reads Parquet, made if it is not there."""
    home = home_of_flink()
    python = home / "bin/python"
    if not is_installed():
        print(f"installing apache-flink=={VERSION} into {home}: 850 MB", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", f"apache-flink=={VERSION}"])
        if done.returncode:
            raise SystemExit(
                f"apache-flink=={VERSION} could not be installed into {home}: see above. "
                "It needs Python 3.10 to 3.12, Java 17 and a registry of packages; FLINK=/path names another folder."
            )
        (home / VERSION).touch()
    lib = next(home.glob("lib/python*/site-packages/pyflink")) / "lib"
    setup.fetch_jars(HERE / "nexmark_flink_jars.toml", home / "jars")
    import pyspark

    spark = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    for jar in [*(home / "jars").glob("*.jar"), *(jar for jar in spark if jar.name.startswith(SPARK_JARS))]:
        link = lib / jar.name
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(jar)
    return home


def flink_files(landing: Path, folder: Path) -> None:
    """Write the events once more, for Flink: a file for each slot, with every second row, in the order of the cuts."""
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
        rows = pa.concat_tables([pq.read_table(file) for file in sorted((landing / kind).glob("*.parquet"))])
        for slot in range(SLOTS):
            pq.write_table(rows.take(np.arange(slot, rows.num_rows, SLOTS)), folder / kind / f"{slot}.parquet")
    (folder / "side_input").mkdir()
    for slot in range(SLOTS):
        rows = side_input()
        pq.write_table(rows.take(np.arange(slot, rows.num_rows, SLOTS)), folder / "side_input" / f"{slot}.parquet")


class Flink:
    """A cluster that is up, with one of the state backends."""

    closing: Closing = "all"
    learns_when = True

    def __init__(self, backend: str, events: Path, rest: str, driver: Talk, reference: Reference) -> None:
        self.backend, self.events, self.rest, self.driver, self.reference = backend, events, rest, driver, reference
        self.processes: list[subprocess.Popen[Any]] = []
        self.intervals: dict[tuple[str, int], float] = {}
        """By query and number of checkpoints: the seconds between two, as the last run shows that they should be."""

    def run(self, query: str, out: Path, checkpoints: int, longest: float) -> dict[str, float]:
        """Run a query to its end. Return the seconds, and how many checkpoints were completed."""
        which = query, checkpoints
        guess = (COLD_S + self.reference.events() / COLD_EVENTS_PER_S) / checkpoints
        seconds = self.intervals.get(which, guess)
        config = CONFIG | {
            "execution.target": "remote",
            "rest.address": "127.0.0.1",
            "rest.port": self.rest.rpartition(":")[2],
            "state.backend.type": self.backend,
            "execution.checkpointing.dir": f"file://{out}/checkpoints",
            "execution.checkpointing.interval": f"{round(seconds * 1000)} ms" if checkpoints > 1 else NEVER,
        }
        asked = {"config": config, "statements": self.statements(query, out, self.reference)}
        answer = self.driver.ask(asked, longest)
        job = f"/jobs/{answer['job']}"
        ended = self.waited_for(job, longest, retries=checkpoints == 1)
        completed = int(self.told(f"{job}/checkpoints")["counts"]["completed"])
        self.intervals[which] = max(LEAST_S, seconds * completed / checkpoints)
        return {"seconds": ended - answer["began"], "checkpoints": completed}

    def waited_for(self, job: str, longest: float, retries: bool) -> float:
        """Wait until a job has ended, and return when it had, in seconds since 1970.

        retries: it takes no checkpoint but its last one. If that comes as a task is about to end, it fails, and the job
        waits for the next one: so another one is asked for.
        """
        until, failed = time.monotonic() + longest, 0
        while time.monotonic() < until:
            time.sleep(POLL_S)
            state = self.told(job)
            if state["state"] == "FINISHED":
                return float(state["end-time"]) / 1000
            if state["state"] in ("FAILED", "CANCELED"):
                raise Failed(str(self.told(f"{job}/exceptions"))[:2000])
            counts = self.told(f"{job}/checkpoints")["counts"] if retries else {}
            if retries and counts["failed"] > failed and not counts["in_progress"]:
                failed = counts["failed"]
                self.told(f"{job}/checkpoints", {"checkpointType": "CONFIGURED"})
        raise Failed(f"no end within {longest:.0f} s")

    def told(self, path: str, asked: Mapping[str, str] | None = None) -> Any:
        """Return what the cluster answers."""
        body = json.dumps(asked).encode() if asked is not None else None
        request = urllib.request.Request(self.rest + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as told:
            return json.load(told)

    def statements(self, query: str, out: Path, reference: Reference) -> list[str]:
        """Return the tables that a query reads, the one that it writes, and the query."""
        declared = []
        for kind in KINDS:
            names = reference.columns(f"SELECT * EXCLUDE (cut) FROM {kind}_read")
            columns = ", ".join(column_of(*each) for each in names)
            watermark = "WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND"
            declared.append(f"CREATE TABLE {kind} ({columns}, {watermark}) WITH ({files(self.events / kind)})")
        side = files(self.events / "side_input")
        declared.append(f"CREATE TABLE side_input (key BIGINT, `value` STRING) WITH ({side})")
        columns = ", ".join(column_of(*each) for each in reference.columns(reference.sql(query)))
        parts = " PARTITIONED BY (dt, hm)" if query == "q10" else ""
        form = "debezium-json" if query in REPLACING else "parquet"
        declared.append(f"CREATE TABLE {query} ({columns}){parts} WITH ({files(out / 'table', form)})")
        return [*declared, f"INSERT INTO {query} {QUERIES[query]}"]

    def found(self, query: str, out: Path, reference: Reference) -> Any:
        """Return the rows that a query has written, of changes what is left of them."""
        if query not in REPLACING:
            read = f"read_parquet('{out}/table/**/part-*', hive_partitioning = true, hive_types_autocast = false)"
            return reference.arrow(f"SELECT * FROM {read}")
        columns = reference.columns(reference.sql(query))
        row = ", ".join(f'"{name}" {kind}' for name, kind in columns).replace("WITH TIME ZONE", "")
        read = (
            f"read_json('{out}/table/part-*', format = 'newline_delimited', "
            f"columns = {{before: 'STRUCT({row})', after: 'STRUCT({row})', op: 'VARCHAR'}})"
        )
        names = ", ".join(f'"{name}"' for name, _ in columns)
        came = f"SELECT unnest(after) FROM {read} WHERE op = 'c'"
        left = f"SELECT unnest(before) FROM {read} WHERE op = 'd'"
        found = f"SELECT {names} FROM (({came}) EXCEPT ALL ({left}))"
        return reference.arrow(found)


def column_of(name: str, kind: str) -> str:
    return f"`{name}` {TYPES.get(kind, kind)}"


def files(path: Path, form: str = "parquet") -> str:
    zone = ", 'parquet.utc-timezone' = 'true'" if form == "parquet" else ""
    return f"'connector' = 'filesystem', 'path' = 'file://{path}', 'format' = '{form}'{zone}"


@contextlib.contextmanager
def flink(
    backend: str, home: Path, folder: Path, events: Path, reference: Reference, longest: float
) -> Iterator[Flink]:
    """Start a cluster, and stop it at the end of the block. folder: for its configuration and logs."""
    package = next(home.glob("lib/python*/site-packages/pyflink"))
    configuration = folder / "conf"
    shutil.copytree(package / "conf", configuration)
    rpc, rest = any_port(), any_port()
    opens = re.search(r"^ +all: (.*)$", (configuration / "config.yaml").read_text(), re.MULTILINE)
    told = {
        "env.java.opts.all": opens[1] if opens else "",
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": rpc,
        "jobmanager.bind-host": "127.0.0.1",
        "jobmanager.memory.process.size": "1g",
        "jobmanager.execution.failover-strategy": "region",
        "heartbeat.timeout": STANDS_STILL,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": rest,
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.numberOfTaskSlots": SLOTS,
        "taskmanager.memory.process.size": "4g",
        "io.tmp.dirs": str(folder),
    }
    (configuration / "config.yaml").write_text("".join(f"{key}: {value}\n" for key, value in told.items()))
    environment = {
        **os.environ,
        "FLINK_HOME": str(package),
        "FLINK_CONF_DIR": str(configuration),
        "FLINK_LOG_DIR": str(folder),
        "PYTHONPATH": "",
    }
    with processes() as start:
        started = [
            start(["bash", package / f"bin/{name}.sh", "start-foreground"], folder / f"{name}.log", env=environment)
            for name in ("jobmanager", "taskmanager")
        ]
        log = folder / "driver.log"
        command = [home / "bin/python", HERE / "nexmark_flink_driver.py"]
        driver = start(command, log, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        talk = Talk(driver, log)
        talk.answer(longest)
        address = f"http://127.0.0.1:{rest}"
        eventually(f"Flink has {SLOTS} slots: see {folder}", lambda: slots(address) == SLOTS, timeout=longest)
        engine = Flink(backend, events, address, talk, reference)
        engine.processes = [*started, driver]
        yield engine


def slots(address: str) -> int:
    """Return how many slots the cluster has."""
    try:
        with urllib.request.urlopen(f"{address}/overview", timeout=5) as told:
            return int(json.load(told)["slots-total"])
    except OSError:
        return 0
