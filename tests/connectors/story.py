"""The story that the proof of exactly once tells: payments arrive, some of them twice; each counts once.

    payments ─▶ deduplicated ─▶ log      a record of each payment, once
                     │
                     ├─▶ totals          one row of each account, replaced whenever it changes
                     └─▶ minutes         a row of each account and minute, when it is complete

Payments come from a topic of Kafka. Every stream goes to Kafka, to PostgreSQL and to Delta, in one checkpoint. What
must be there is computed here, in plain Python.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from tests.kit.kafka import Broker, KafkaRecord
from tests.kit.postgres import Server
from tests.kit.world import World
from tidegate import Pipeline
from tidegate.execution.job.run_job import run_job
from tidegate.pipeline import Stream
from tidegate.records.place import Place
from tidegate.records.records import Plan
from tidegate.sinks import DeltaAppend, DeltaUpsert, KafkaTopic, PostgresAppend, PostgresUpsert
from tidegate.sources import Kafka

__all__ = ["SCHEMA", "Payments", "differences", "last_payment", "make_checkpoint", "payments_of", "send"]

Row = dict[str, Any]

SCHEMA = "id long, account string, amount long, at timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)
FLUSH = timedelta(days=1)
"""How much later the last payment is: by then every minute is complete."""
PORTION = 20
TOPICS = ("log", "totals", "minutes")
TRANSACTION_TIMEOUT_S = 6.0


@dataclass
class Payments(World):
    """The pipeline, what it reads and what it writes."""

    name: str = field(default="payments", init=False)
    servers: str = ""
    database: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return Place(str(self.root), connections={f"shop.{name}": text for name, text in self.database.items()})

    def land(self, upto: int) -> None:
        """Let so many portions have arrived in all as files, for who reads files."""
        landing = self.root / "landing"
        landing.mkdir(parents=True, exist_ok=True)
        for number in range(upto):
            path = landing / f"{number:05d}.json"
            if not path.exists():
                path.write_text("".join(json.dumps(row) + "\n" for row in payments_of(number)))

    def sinks(self, log: Stream, totals: Stream, minutes: Stream) -> None:
        """Declare where rows go."""
        log.sink("log", self.kafka("log", key="account"))
        totals.sink("totals", self.kafka("totals", key=["account"]))
        minutes.sink("minutes", self.kafka("minutes", key=["account", "window_start"]))
        log.sink("log-rows", PostgresAppend("log", connection="shop"))
        totals.sink("totals-rows", PostgresUpsert("totals", connection="shop", keys=["account"]))
        minutes.sink("minutes-rows", PostgresAppend("minutes", connection="shop"))
        log.sink("log-table", DeltaAppend("tables/log"))
        totals.sink("totals-table", DeltaUpsert("tables/totals", keys=["account"]))
        minutes.sink("minutes-table", DeltaAppend("tables/minutes"))

    def kafka(self, topic: str, key: str | list[str]) -> KafkaTopic:
        return KafkaTopic(
            topic,
            servers=self.servers,
            key=key,
            checkpoint_header="checkpoint",
            partitions=3,
            transaction_timeout=TRANSACTION_TIMEOUT_S,
        )

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("payments")
        source = Kafka("payments", servers=self.servers, value="json", schema=SCHEMA, max_offsets=2 * PORTION)
        payments = pipeline.source("payments", source, event_time="at", watermark="10 min")
        once = payments.deduplicate(by=["id"], within="1 day", uid="once")
        totals = once.aggregate(by=["account"], spent="sum(amount)", payments="count(*)", uid="totals")
        minutes = once.window(tumbling="1 min", by=["account"], spent="sum(amount)", uid="minutes")
        self.sinks(once, totals, minutes)
        return pipeline


def last_payment(number: int) -> Row:
    """One of two payments that come last, and complete every minute: what is complete is known one checkpoint later."""
    return {"id": -number, "account": "last", "amount": 0, "at": (START + FLUSH).isoformat()}


def send(broker: Broker, payments: Iterable[Row]) -> None:
    """Let payments arrive."""
    broker.send("payments", [(str(row["id"]), json.dumps(row)) for row in payments])


@cache
def payments_of(number: int) -> tuple[Row, ...]:
    """One portion. Every fifth payment has come before, in this portion or in the last one."""
    dice = random.Random(f"payments {number}")
    rows: list[Row] = []
    earlier = payments_of(number - 1) if number else ()
    for each in range(PORTION):
        if each % 5 == 4:
            rows.append(dice.choice([*rows, *earlier[-10:]]))
            continue
        at = START + timedelta(seconds=20 * number + dice.randrange(20))
        rows.append(
            {
                "id": 1000 * number + each,
                "account": f"account {dice.randrange(6)}",
                "amount": dice.randrange(1, 100),
                "at": at.isoformat(),
            }
        )
    return tuple(rows)


def make_checkpoint(world: World, run: str, spark: Any) -> int | None:
    """Do what the tasks of one run do. Whoever has a checkpoint open is taken for dead. None: nothing is new."""
    coordinator = world.coordinator()

    def give_up(_: Plan) -> str | None:
        return "RUN_GONE"

    triggered = coordinator.trigger(run, give_up=give_up, only_if_new=True)
    if triggered is None:
        coordinator.publish()
        return None
    for job in triggered.plan.acks:
        run_job(coordinator, triggered.plan.id, job, spark)
    coordinator.complete(triggered.plan.id)
    coordinator.publish()
    coordinator.retire()
    return int(triggered.plan.id)


# -- what must be there ----------------------------------------------------------------------------------


def differences(world: Payments, broker: Broker, database: Server, portions: int) -> dict[str, str]:
    """Return what differs from the reference, by target; nothing if all is there exactly once."""
    payments = {row["id"]: row for number in range(portions) for row in payments_of(number)}
    expected_log = Counter((row["id"], row["account"], row["amount"]) for row in payments.values())
    spent: dict[str, int] = defaultdict(int)
    minutes: dict[tuple[str, str], int] = defaultdict(int)
    for row in payments.values():
        spent[row["account"]] += row["amount"]
        minute = datetime.fromisoformat(row["at"]).replace(second=0)
        minutes[row["account"], minute.isoformat()] += row["amount"]
    found = {topic: broker.read(topic) for topic in TOPICS}
    log = Counter(_payment(row) for row in _values(found["log"]))
    totals = Counter((record.key, _checkpoint(record)) for record in found["totals"])
    last = {row["account"]: row["spent"] for row in _values(found["totals"])}
    told = Counter((row["account"], _minute(row["window_start"]), row["spent"]) for row in _values(found["minutes"]))
    expected_minutes = Counter((*key, amount) for key, amount in minutes.items())
    tables = {name: world.rows(f"tables/{name}") for name in TOPICS}
    compared: Mapping[str, tuple[Any, Any]] = {
        "topic log": (expected_log, log),
        "topic totals, twice": ({}, {key: times for key, times in totals.items() if times > 1}),
        "topic totals, order": (sorted(found["totals"], key=_place), sorted(found["totals"], key=_age)),
        "topic totals, last": (dict(spent), _without_last(last)),
        "topic minutes": (expected_minutes, told),
        "rows log": (expected_log, Counter(database.run("SELECT id, account, amount FROM log"))),
        "rows totals": (dict(spent), _without_last(dict(database.run("SELECT account, spent::bigint FROM totals")))),
        "rows minutes": (
            expected_minutes,
            Counter(
                (account, at.astimezone(UTC).isoformat(), spent)
                for account, at, spent in database.run("SELECT account, window_start, spent::bigint FROM minutes")
            ),
        ),
        "table log": (expected_log, Counter(_payment(row) for row in tables["log"])),
        "table totals": (dict(spent), _without_last({row["account"]: row["spent"] for row in tables["totals"]})),
        "table minutes": (
            expected_minutes,
            Counter((row["account"], row["window_start"].isoformat(), row["spent"]) for row in tables["minutes"]),
        ),
    }
    return {name: _difference(*pair) for name, pair in compared.items() if _plain(pair[0]) != _plain(pair[1])}


def _values(records: list[KafkaRecord]) -> list[Row]:
    return [json.loads(record.value) for record in records if record.value is not None]


def _payment(row: Row) -> tuple[Any, ...]:
    return (row["id"], row["account"], row["amount"])


def _minute(text: str) -> str:
    return datetime.fromisoformat(text).isoformat()


def _checkpoint(record: KafkaRecord) -> int:
    return int(dict(record.headers)["checkpoint"] or b"0")


def _place(record: KafkaRecord) -> tuple[Any, ...]:
    return (record.partition, record.offset)


def _age(record: KafkaRecord) -> tuple[Any, ...]:
    return (record.partition, _checkpoint(record), record.offset)


def _without_last(spent: Mapping[str, int]) -> dict[str, int]:
    return {account: amount for account, amount in spent.items() if account != "last"}


def _plain(found: Any) -> Any:
    """Without the payments that only complete the minutes."""
    if isinstance(found, Counter):
        return Counter({key: times for key, times in found.items() if "last" not in key})
    return found


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, Counter):
        missing, beyond = _plain(expected) - _plain(found), _plain(found) - _plain(expected)
        return f"{sum(missing.values())} missing {list(missing)[:3]}, {sum(beyond.values())} beyond {list(beyond)[:3]}"
    return f"expected {str(expected)[:300]}, found {str(found)[:300]}"
