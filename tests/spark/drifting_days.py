"""Random days of a producer whose records change, and a plain reference of what each table must hold.

The reference is a few loops over Python's own JSON. It knows from the log only which files each checkpoint read, and in
which order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.kit.postgres_sinks import CONNECTION, connections
from tests.kit.world import World
from tests.spark.mended_shop import OneSession, never
from tidegate import Pipeline, seams
from tidegate.backfill import begin, replay, swap
from tidegate.checkpoint.approvals import answer
from tidegate.execution.loop import Observer, Schedule
from tidegate.gates import Expectations
from tidegate.records.place import Place
from tidegate.sinks import DeltaAppend, DeltaUpsert, KafkaTopic, PostgresAppend, PostgresUpsert
from tidegate.sources import Files

__all__ = ["Days", "Servers"]

PRICES: list[Any] = [1, 2.25, 3.125, 12345.5, "7", None, 1e300]
RATES: list[Any] = [1, 2.5, 5_000_000_000, "x", None, 0.1, 12345678901234567890]
KEYS = ["vip", "qty", "Qty", "note", "tags", "of", "a b", "country.code", "später", "Country"]
VALUES = [True, False, 5, -7, 2.5, "x", "5", None, {"a": 1}, [1, 2], [2.5], [], ["x"], 12345678901234567890]
AMOUNTS: list[Any] = [1, 2, 3, 40, None, "12 EUR", True, 99999999999999, {"v": 1}]
"""No fractions: they would make the column a double, and a sum of whole numbers cannot follow."""
DECLARED = {"id": "bigint", "country": "string", "amount": "int", "price": "decimal(6,2)", "rate": "int"}
PAYMENTS = {"id": "bigint", "cents": "int"}
INTEGERS = {"int": 2**31, "bigint": 2**63}


class Killed(BaseException):
    """The process has died."""


@dataclass(frozen=True)
class Servers:
    """Where some of the tables are, besides Delta."""

    postgres: Any
    broker: Any


class Days(World):
    """Orders as they come, the first of each id, those that are paid, and totals by country.

    Orders without an id are set aside. Whoever makes them dies now and then.
    """

    def __init__(self, root: Any, spark: Any, seed: int, servers: Servers | None = None) -> None:
        super().__init__(root)
        self.spark, self.random, self.servers = spark, random.Random(seed), servers
        self.story: list[str] = []
        self.files = self.records = self.kills = self.days = self.rollbacks = self.holds = 0
        self.on_new_column: Any = "evolve" if seed % 2 == 0 else "hold"
        self.paid = 0
        self.sent: dict[int, list[str]] = {}
        """By checkpoint, the rows that a topic must have of it, if it has any."""
        for folder in ("landing", "payments", "include/expectations"):
            (root / folder).mkdir(parents=True)
        rule = "{type: expect_column_values_to_not_be_null, kwargs: {column: id}, id: has_id}"
        (root / "include/expectations/orders.yaml").write_text(f"expectations:\n  - {rule}\n")
        if servers is not None:
            self.topic = f"drifting-orders-{seed}"
            servers.postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
            servers.broker.create_topic(self.topic, partitions=2)

    @property
    def place(self) -> Place:
        """Relative paths start at the root, and the database is a connection."""
        logins = connections(self.servers.postgres) if self.servers is not None else {}
        return Place(str(self.root), connections=logins)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        policy = {"on_new_column": self.on_new_column, "on_type": "widen"}
        files = Files("landing/*.json", schema=ddl(DECLARED), **policy, max_files=2)
        paid = Files("payments/*.json", schema=ddl(PAYMENTS), on_type="widen", rescue_column="_unpaid", max_files=2)
        read = pipeline.source("orders", files)
        orders = read.gate(Expectations("orders", on_failure="quarantine"), name="checked")
        orders.sink("orders", DeltaAppend("tables/orders", schema_evolution="widen"))
        first = orders.deduplicate(by="id", uid="first")
        first.sink("first", DeltaUpsert("tables/first", keys=["id"], schema_evolution="widen"))
        joined = orders.join(pipeline.source("payments", paid), on="id", uid="joined")
        joined.sink("joined", DeltaUpsert("tables/joined", keys=["id"], schema_evolution="widen"))
        totals = orders.aggregate(by="country", spent="sum(amount)", most="max(amount)", rows="count(*)", uid="totals")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["country"], schema_evolution="widen"))
        if self.servers is not None:
            in_postgres: Any = {"connection": CONNECTION, "schema_evolution": "widen", "allow_rollback": True}
            orders.sink("orders_in_postgres", PostgresAppend("orders", **in_postgres))
            totals.sink("totals_in_postgres", PostgresUpsert("totals", keys=["country"], **in_postgres))
            topic = KafkaTopic(self.topic, servers=self.servers.broker.servers, checkpoint_header="checkpoint")
            orders.sink("topic", topic)
        return pipeline

    # -- what happens --------------------------------------------------------------------------------

    def land(self) -> None:
        """A file with a few records, some of which have keys or types of their own."""
        self.files += 1
        changes = self.random.random() < 0.6
        records = [self.record(changes) for _ in range(self.random.randrange(1, 6))]
        (self.root / "landing" / f"{self.files:04d}.json").write_text(
            "\n".join(json.dumps(record) for record in records)
        )

        paid = [self.payment() for _ in range(self.random.randrange(3))]
        if paid:
            (self.root / "payments" / f"{self.files:04d}.json").write_text("\n".join(map(json.dumps, paid)))

    def payment(self) -> dict[str, Any]:
        """One for an order that was placed, or will be. No order is paid twice."""
        self.paid += 1
        return {"id": self.paid, "cents": self.random.choice([5, 70, 3_000_000_000, "7", 2.5])}

    def record(self, changes: bool) -> dict[str, Any]:
        pick = self.random
        self.records += 1
        record = {"id": self.records, "country": pick.choice(["AT", "DE", "FR"]), "amount": pick.randrange(50)}
        record["price"] = pick.randrange(100) / 4
        if changes and pick.random() < 0.5:
            record["price"] = pick.choice(PRICES)
        if changes and pick.random() < 0.5:
            record["rate"] = pick.choice(RATES)
        if changes and pick.random() < 0.5:
            record["amount"] = pick.choice(AMOUNTS)
        if changes and pick.random() < 0.1:
            record["id"] = pick.choice(["x", 1.5, None])
        for key in pick.sample(KEYS, pick.randrange(3)) if changes else []:
            record[key] = pick.choice(VALUES)
        members = list(record.items())
        pick.shuffle(members)
        return dict(members)

    def live(self, steps: int) -> None:
        """Some days: files land, checkpoints are made, at times by somebody who dies, and rolled back."""
        for _ in range(steps):
            act = self.random.choices(["land", "checkpoint", "roll back"], [5, 5, 1])[0]
            if act == "land":
                self.land()
            elif act == "checkpoint":
                self.make_checkpoint()
            else:
                self.go_back()
            self.check()

    def live_a_day(self) -> None:
        """Files in the morning, a few runs, and on some days somebody who goes back to an earlier checkpoint."""
        self.days += 1
        for _ in range(self.random.randrange(2, 4)):
            self.land()
        for _ in range(2):
            self.make_checkpoint()
        if self.random.random() < 0.2:
            self.go_back()
            self.make_checkpoint()
        self.check()

    def make_checkpoint(self) -> None:
        """All tasks of a run. Each may die at any point, and is tried again."""
        run = f"run {len(self.story)}"
        id = self.until_it_succeeds(lambda: self.coordinator().trigger(run))
        if not hasattr(id, "plan"):
            self.story.append(f"{run}: nothing")
            return
        self.story.append(f"{run}: checkpoint {id.plan.id}")
        self.until_it_succeeds(lambda: self.work(id.plan.id))
        outcome = self.until_it_succeeds(lambda: self.coordinator().complete(id.plan.id))
        if outcome.reason == "HELD":
            self.decide(id.plan.id)
        self.until_it_succeeds(self.publish)

    def decide(self, id: int) -> None:
        """A person looks at new columns, sometimes after further files have come."""
        self.holds += 1
        if self.random.random() < 0.3:
            self.land()
        approve = self.random.random() < 0.7
        self.story.append(f"{'approved' if approve else 'rejected'}: {id}")
        self.until_it_succeeds(lambda: self.answer(id, approve=approve))
        self.until_it_succeeds(lambda: self.coordinator().complete(id))
        if not approve:
            self.until_it_succeeds(lambda: self.coordinator().resume("ann"))

    def answer(self, id: int, *, approve: bool) -> None:
        """Answer, unless somebody who died had answered before."""
        entry = self.ledger.entry(id)
        assert entry is not None
        if not entry.answers:
            answer(self.ledger, id, None, approve=approve, by="ann")

    def go_back(self) -> None:
        completed = [entry.id for entry in self.ledger.view().entries if entry.completed and not entry.rollback]
        if not completed:
            return
        to = self.random.choice(completed[-4:])
        run = f"back {len(self.story)}"
        self.story.append(f"{run}: to {to}")
        self.note_what_was_sent()
        choices: Any = {"topic": "keep"} if self.servers is not None else {}
        done = self.until_it_succeeds(lambda: self.coordinator().roll_back(to, run=run, by="ann", choices=choices))
        assert done.error is None, done.error
        self.rollbacks += 1
        self.until_it_succeeds(self.publish)

    def until_it_succeeds(self, act: Any) -> Any:
        while True:
            with self.perhaps_dying(), contextlib.suppress(Killed):
                return act()
            self.kills += 1

    @contextlib.contextmanager
    def perhaps_dying(self) -> Iterator[None]:
        """Die at one of the next points, in one of two times."""
        left = self.random.randrange(1, 30) if self.random.random() < 0.5 else 0
        count = 0

        def dies(point: str) -> None:
            nonlocal count
            count += 1
            if count == left:
                raise Killed(point)

        before = seams.current()
        with seams.installed(type(before)(**{**vars(before), "fault": dies})):
            yield

    # -- what must hold ------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare each table with the reference."""
        expected = self.expected()
        for name in ("orders", "first", "joined", "totals"):
            self.compare(name, self.table(name), getattr(expected, name)())
        aside = [without_marks(row) for row in self.rows("ledger/orders/quarantine/checked")]
        self.compare("aside", aside, expected.aside)
        if self.servers is not None:
            self.check_servers(expected)

    def compare(self, what: str, actual: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
        found, wanted = Counter(map(shown, actual)), Counter(map(shown, expected))
        schemas = self.expected().of_orders
        assert found == wanted, "\n".join(
            [
                f"{what}: too much {[*(found - wanted).elements()]}",
                f"missing {[*(wanted - found).elements()]}",
                f"columns {schemas.columns}, of which became wider {schemas.wide}",
                f"story {self.story}",
            ]
        )

    def check_servers(self, expected: Reference) -> None:
        for name in ("orders", "totals"):
            found = self.servers.postgres.run(f"SELECT to_jsonb(t) FROM {name} t") if expected.checkpoints else []
            # As JSON, PostgreSQL writes a large double as a whole number.
            doubles = [column for column, kind in expected.of_orders.columns.items() if kind == "double"]
            rows = [without_marks(row) for (row,) in found]
            for row in rows:
                row |= {column: float(row[column]) for column in doubles if row.get(column) is not None}
            self.compare(f"{name} in postgres", rows, getattr(expected, name)())
        sent: dict[int, list[str]] = defaultdict(list)
        for record in self.servers.broker.read(self.topic):
            (checkpoint,) = [int(value) for name, value in record.headers if name == "checkpoint"]
            sent[checkpoint].append(shown(json.loads(record.value)))
        self.note_what_was_sent()
        for checkpoint, rows in sent.items():
            assert sorted(rows) == sorted(self.sent[checkpoint]), ("topic", checkpoint, self.story)
        missing = {checkpoint for checkpoint, rows in expected.checkpoints.items() if rows} - set(sent)
        assert not missing, ("topic", missing, self.story)

    def note_what_was_sent(self) -> None:
        """Remember the rows of each checkpoint that counts now: a topic keeps them after a rollback."""
        for checkpoint, rows in self.expected().checkpoints.items():
            self.sent[checkpoint] = list(map(shown, rows))

    def replay(self) -> None:
        """Compute all checkpoints again, as they were cut and as they read, and put the result in place."""
        before = self.expected()
        line = begin(self.coordinator(), "again", 0, by="ann", cuts="recorded")
        replay(line, OneSession(self.spark), Schedule(), Observer())
        choices: Any = {
            name: "keep" for name in self.graph().sinks if name not in ("orders", "first", "joined", "totals")
        }
        assert swap(line, by="ann", choices=choices, wait=never).error is None
        self.publish()
        for name in ("orders", "first", "joined", "totals"):
            self.compare(f"{name} again", self.table(name), getattr(before, name)())

    def expected(self) -> Reference:
        expected = Reference()
        for id, orders, payments in self.files_of_each_checkpoint():
            expected.read(
                id,
                [self.root / "landing" / name for name in orders],
                [self.root / "payments" / name for name in payments],
            )
        return expected

    def files_of_each_checkpoint(self) -> list[tuple[int, list[str], list[str]]]:
        """The checkpoints that the tables hold, oldest first, with the files that each read."""
        view, ledger = self.ledger.view(), self.ledger
        entry = view.last_completed
        found: list[tuple[int, list[str], list[str]]] = []
        while entry is not None:
            if entry.rollback is not None:
                entry = ledger.entry(entry.rollback.target) if entry.rollback.target else None
                continue
            files = []
            for name in ("orders", "payments"):
                splits = ledger.unpack(entry.plan.sources[name].splits)
                files.append([file["name"] for file in splits.get("files", ())])
            found.append((entry.id, files[0], files[1]))
            entry = ledger.entry(entry.plan.base) if entry.plan.base else None
        return found[::-1]


def ddl(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def without_marks(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the columns that tidegate adds to it."""
    return {name: row[name] for name in row if name == "_rescued" or not name.startswith(("_", "tidegate_"))}


class Reader:
    """Reads the records of one source, and learns its columns from them."""

    def __init__(self, declared: dict[str, str], rescued: str, *, evolves: bool) -> None:
        self.declared, self.rescued, self.evolves = declared, rescued, evolves
        self.columns = dict(declared)
        self.known: dict[str, str] = {}
        self.wide: dict[str, str] = {}

    def read(self, files: list[Any]) -> list[dict[str, Any]]:
        """One checkpoint: rows with the columns as they are, and then those that were new, or too narrow."""
        found: dict[str, str] = {}
        misfits: dict[str, list[Any]] = defaultdict(list)
        rows = []
        for file in files:
            for line in file.read_text().splitlines():
                rows.append(self.row(json.loads(line), found, misfits))
        for name in sorted(found):
            self.known[name] = common(self.known.get(name, "void"), found[name])
        for name, values in misfits.items():
            self.wide[name] = wider(self.columns[name], values)
        self.columns = dict(self.declared)
        for name, kind in self.known.items() if self.evolves else ():
            if kind != "void" and not set(name) & set(" .") and name.lower() not in {c.lower() for c in self.columns}:
                self.columns[name] = kind
        self.columns |= {name: kind for name, kind in self.wide.items() if name in self.columns}
        return rows

    def row(self, record: dict[str, Any], found: dict[str, str], misfits: dict[str, list[Any]]) -> dict[str, Any]:
        row: dict[str, Any] = {}
        rescued = {}
        for key, value in record.items():
            if key not in self.columns:
                rescued[key] = value
                found[key] = common(found.get(key, "void"), type_of(value))
            elif value is not None:
                fits, read = as_type(value, self.columns[key])
                if fits:
                    row[key] = read
                else:
                    rescued[key] = value
                    misfits[key].append(value)
        if rescued:
            row[self.rescued] = rescued
        return row


class Reference:
    """What the tables hold, computed from the files one after the other."""

    def __init__(self) -> None:
        self.of_orders = Reader(DECLARED, "_rescued", evolves=True)
        self.of_payments = Reader(PAYMENTS, "_unpaid", evolves=False)
        self.rows: list[dict[str, Any]] = []
        self.aside: list[dict[str, Any]] = []
        self.payments: list[dict[str, Any]] = []
        self.checkpoints: dict[int, list[dict[str, Any]]] = {}

    def read(self, id: int, orders: list[Any], payments: list[Any]) -> None:
        """One checkpoint."""
        rows = self.of_orders.read(orders)
        self.checkpoints[id] = [row for row in rows if "id" in row]
        self.rows += self.checkpoints[id]
        self.aside += [row for row in rows if "id" not in row]
        self.payments += self.of_payments.read(payments)

    def orders(self) -> list[dict[str, Any]]:
        return self.rows

    def first(self) -> list[dict[str, Any]]:
        """Return the rows. No id comes twice, unless a row is published twice."""
        return self.rows

    def joined(self) -> list[dict[str, Any]]:
        by_id = {payment["id"]: payment for payment in self.payments}
        return [{**by_id[row["id"]], **row} for row in self.rows if row["id"] in by_id]

    def totals(self) -> list[dict[str, Any]]:
        spent: dict[str, list[Any]] = defaultdict(list)
        for row in self.rows:
            spent[row["country"]].append(row.get("amount"))
        totals = []
        for country, amounts in spent.items():
            known = [amount for amount in amounts if amount is not None]
            total = {"spent": sum(known), "most": max(known)} if known else {}
            totals.append({"country": country, "rows": len(amounts), **total})
        return totals


def figures(value: Any) -> tuple[int, int]:
    """How many digits a number has before its point, and behind it."""
    _, digits, power = Decimal(str(value)).normalize().as_tuple()
    places = max(-int(power), 0)
    return max(len(digits) + int(power), 0), places


def wider(kind: str, values: list[Any]) -> str:
    """Return the type of a column after it got values that it could not hold."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if kind == "int":
        has_fractions = any(isinstance(number, float) for number in numbers)
        if has_fractions and not any(is_rounded_by_doubles(number) for number in numbers):
            return "double"
        whole = [number for number in numbers if isinstance(number, int)]
        return "bigint" if any(abs(number) < 2**63 for number in whole) else kind
    if kind.startswith("decimal("):
        precision, scale = map(int, kind[8:-1].split(","))
        plain = [figures(number) for number in numbers if "e" not in str(number)]
        places = max([scale, *(behind for _, behind in plain)])
        whole = max([precision - scale, *(before for before, _ in plain)])
        return f"decimal({whole + places},{places})" if whole + places <= 38 else kind
    return kind


def is_rounded_by_doubles(number: Any) -> bool:
    """Return whether it is a whole number so large that doubles hold only some of its kind."""
    return isinstance(number, int) and abs(number) > 2**53


def type_of(value: Any) -> str:
    if value is None:
        return "void"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if abs(value) < 2**63 else "decimal(38,0)"
    if isinstance(value, float):
        return "double"
    if isinstance(value, list) and value:
        return f"array<{type_of(value[0])}>"
    return "string"


def common(one: str, other: str) -> str:
    if one == other or other == "void":
        return one
    if one == "void":
        return other
    if one.startswith("array<") and other.startswith("array<"):
        return f"array<{common(one[6:-1], other[6:-1])}>"
    numbers = ["bigint", "decimal(38,0)", "double"]
    if one in numbers and other in numbers:
        return max(one, other, key=numbers.index)
    return "string"


def as_type(value: Any, kind: str) -> tuple[bool, Any]:
    """Return whether a column can hold a value, and the value in it."""
    if kind.startswith("array<"):
        if not isinstance(value, list):
            return False, None
        elements = [as_type(element, kind[6:-1]) for element in value]
        return all(fits for fits, _ in elements), [read for _, read in elements]
    if kind == "string":
        return True, value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    if kind == "boolean":
        return isinstance(value, bool), value
    if kind.startswith("decimal(") and isinstance(value, str) and re.fullmatch(r"-?[0-9]+([.][0-9]+)?", value):
        return as_type(Decimal(value), kind)  # Spark reads a decimal from a text, too
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return False, None
    if kind == "double":
        return not is_rounded_by_doubles(value), float(value)
    if kind.startswith("decimal("):
        precision, scale = map(int, kind[8:-1].split(","))
        before, behind = figures(value)
        return behind <= scale and before <= precision - scale, Decimal(str(value))
    return isinstance(value, int) and abs(value) < INTEGERS[kind], value


def shown(row: dict[str, Any]) -> str:
    """A row in a form to compare: without nulls, and with numbers as numbers."""
    short = {name: value for name, value in row.items() if value is not None}
    for rescued in ("_rescued", "_unpaid"):
        if isinstance(short.get(rescued), str):
            short[rescued] = json.loads(short[rescued])
    return json.dumps(alike(short), sort_keys=True)


def alike(value: Any) -> Any:
    """The same with 2.0, Decimal("2.00") and 2 as one number."""
    if isinstance(value, dict):
        return {name: alike(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [alike(inner) for inner in value]
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    """A PostgreSQL and a Kafka broker."""
    from tests.kit.kafka import kafka
    from tests.kit.postgres import server

    with server("fsync=off") as postgres, kafka() as broker:
        yield Servers(postgres, broker)


def main() -> int:
    """Many lives, one seed's again, or thirty days with all kinds of tables."""
    from tests.kit.jvm import INTERPRETED
    from tidegate.spark.session import SparkSettings, session

    parser = argparse.ArgumentParser(prog="python -m tests.spark.drifting_days", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--days", type=int, help="one life of so many days, with tables in PostgreSQL and Kafka, too")
    parser.add_argument("--kills", type=int, default=0, help="with --days: more days until so many have died")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(1 if options.days else options.seeds)
    kills = holds = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        settings = SparkSettings(
            mode="local", home=Path(folder) / "spark", master="local[2]", memory="1g", conf=INTERPRETED
        )
        spark = stack.enter_context(session(settings))
        others = stack.enter_context(servers()) if options.days else None
        for seed in seeds:
            root = Path(folder) / str(seed)
            root.mkdir()
            days = Days(root, spark, seed, others)
            days.limit(num_retained=1_000)
            if options.days:
                live_days(days, options.days, options.kills)
            else:
                days.live(options.steps)
            kills += days.kills
            holds += days.holds
            rows = days.table("orders")
            rescued = sum(1 for row in rows if row["_rescued"])
            print(f"seed {seed}: {len(days.story)} acts, {len(rows)} rows, {rescued} with rescued values", flush=True)
    print(f"no value is lost; {kills} kills, {holds} checkpoints held for new columns")
    return 0


def live_days(days: Days, count: int, kills: int) -> None:
    """Live so many days, and more until so many have died. Then compute everything again."""
    while days.days < count or days.kills < kills:
        days.live_a_day()
        print(
            f"day {days.days}: {days.files} files, {days.kills} kills, {days.rollbacks} rollbacks: all tables hold "
            "what the reference does",
            flush=True,
        )
    print(f"the schema is {days.expected().of_orders.columns}", flush=True)
    days.replay()
    print("all of it computed again, as it was cut: the same", flush=True)


if __name__ == "__main__":
    sys.exit(main())
