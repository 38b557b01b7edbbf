"""Random days of a producer whose records change, and a plain reference of what each table must hold.

The reference is a few loops over Python's own JSON. It knows from the log only which files each checkpoint read, and in
which order.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.world import World
from tidegate import Pipeline, seams
from tidegate.checkpoint.approvals import answer
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sources import Files

__all__ = ["Days"]

KEYS = ["vip", "qty", "Qty", "note", "tags", "of", "a b", "country.code", "später", "Country"]
VALUES = [True, False, 5, -7, 2.5, "x", "5", None, {"a": 1}, [1, 2], [2.5], [], ["x"], 12345678901234567890]
AMOUNTS: list[Any] = [1, 2, 3, 40, None, "12 EUR", 2.5, True, 99999999999999, {"v": 1}]
DECLARED = {"id": "bigint", "country": "string", "amount": "int"}
INTEGERS = {"int": 2**31, "bigint": 2**63}


class Killed(BaseException):
    """The process has died."""


class Days(World):
    """Orders as they come, the first of each id, and totals by country. Whoever makes them dies now and then."""

    def __init__(self, root: Any, spark: Any, seed: int) -> None:
        super().__init__(root)
        self.spark, self.random = spark, random.Random(seed)
        self.story: list[str] = []
        self.files = self.records = self.kills = self.holds = 0
        self.on_new_column = "evolve" if seed % 2 == 0 else "hold"
        (root / "landing").mkdir()

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline("orders")
        files = Files(
            "landing/*.json",
            schema=", ".join(f"{name} {kind}" for name, kind in DECLARED.items()),
            on_new_column=self.on_new_column,  # type: ignore[arg-type]
            on_type="rescue",
            max_files=2,
        )
        orders = pipeline.source("orders", files)
        orders.sink("orders", DeltaAppend("tables/orders", schema_evolution="add"))
        first = orders.where("id IS NOT NULL").deduplicate(by="id", uid="first")
        first.sink("first", DeltaUpsert("tables/first", keys=["id"], schema_evolution="add"))
        totals = orders.aggregate(by="country", spent="sum(amount)", rows="count(*)", uid="totals")
        totals.sink("totals", DeltaUpsert("tables/totals", keys=["country"]))
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

    def record(self, changes: bool) -> dict[str, Any]:
        pick = self.random
        self.records += 1
        record = {"id": self.records, "country": pick.choice(["AT", "DE", "FR"]), "amount": pick.randrange(50)}
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

    def make_checkpoint(self) -> None:
        """All tasks of a run. Each may die at any point, and is tried again."""
        run = f"run {len(self.story)}"
        id = self.until_it_succeeds(lambda: self.coordinator().trigger(run))
        self.story.append(f"{run}: {id}")
        if not hasattr(id, "plan"):
            return
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
        to = self.random.choice(completed)
        run = f"back {len(self.story)}"
        self.story.append(f"{run}: to {to}")
        done = self.until_it_succeeds(lambda: self.coordinator().roll_back(to, run=run, by="ann"))
        assert done.error is None, done.error
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
        expected = Reference()
        for files in self.files_of_each_checkpoint():
            expected.read([self.root / "landing" / name for name in files])
        for name in ("orders", "first", "totals"):
            actual = sorted(map(shown, self.table(name)))
            assert actual == sorted(map(shown, getattr(expected, name)())), (name, self.story)

    def files_of_each_checkpoint(self) -> list[list[str]]:
        """The files of the checkpoints that the tables hold, oldest first."""
        view, ledger = self.ledger.view(), self.ledger
        entry = view.last_completed
        found: list[list[str]] = []
        while entry is not None:
            if entry.rollback is not None:
                entry = ledger.entry(entry.rollback.target) if entry.rollback.target else None
                continue
            found.append([file["name"] for file in ledger.unpack(entry.plan.sources["orders"].splits)["files"]])
            entry = ledger.entry(entry.plan.base) if entry.plan.base else None
        return found[::-1]


@dataclass
class Reference:
    """What the tables hold, computed from the files one after the other."""

    columns: dict[str, str] = field(default_factory=lambda: dict(DECLARED))
    known: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def read(self, files: list[Any]) -> None:
        """One checkpoint: rows with the columns as they are, and then the columns that were new."""
        found: dict[str, str] = {}
        for file in files:
            for line in file.read_text().splitlines():
                self.rows.append(self.row(json.loads(line), found))
        for name in sorted(found):
            self.known[name] = common(self.known.get(name, "void"), found[name])
        self.columns = dict(DECLARED)
        for name, kind in self.known.items():
            if kind != "void" and not set(name) & set(" .") and name.lower() not in {c.lower() for c in self.columns}:
                self.columns[name] = kind

    def row(self, record: dict[str, Any], found: dict[str, str]) -> dict[str, Any]:
        row, rescued = {}, {}
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
        if rescued:
            row["_rescued"] = rescued
        return row

    def orders(self) -> list[dict[str, Any]]:
        return self.rows

    def first(self) -> list[dict[str, Any]]:
        """Return the rows with an id. No id comes twice, unless a row is published twice."""
        return [row for row in self.rows if "id" in row]

    def totals(self) -> list[dict[str, Any]]:
        spent: dict[str, list[Any]] = defaultdict(list)
        for row in self.rows:
            spent[row["country"]].append(row.get("amount"))
        totals = []
        for country, amounts in spent.items():
            known = [amount for amount in amounts if amount is not None]
            totals.append({"country": country, "spent": sum(known) if known else None, "rows": len(amounts)})
        return totals


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
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False, None
    if kind == "double":
        return True, float(value)
    if kind == "decimal(38,0)":
        return isinstance(value, int), value
    return isinstance(value, int) and abs(value) < INTEGERS[kind], value


def shown(row: dict[str, Any]) -> str:
    """A row in a form to compare: without nulls, and with numbers as numbers."""
    short = {name: value for name, value in row.items() if value is not None}
    if isinstance(short.get("_rescued"), str):
        short["_rescued"] = json.loads(short["_rescued"])
    return json.dumps(short, sort_keys=True, default=int)


def main() -> int:
    """Many lives, or one seed's again."""
    from tests.kit.jvm import INTERPRETED
    from tidegate.spark.session import SparkSettings, session

    parser = argparse.ArgumentParser(prog="python -m tests.spark.drifting_days", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="replay this one only")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else range(options.seeds)
    kills = holds = 0
    with tempfile.TemporaryDirectory() as folder:
        settings = SparkSettings(
            mode="local", home=Path(folder) / "spark", master="local[2]", memory="1g", conf=INTERPRETED
        )
        with session(settings) as spark:
            for seed in seeds:
                root = Path(folder) / str(seed)
                root.mkdir()
                days = Days(root, spark, seed)
                days.limit(num_retained=200)
                days.live(options.steps)
                kills += days.kills
                holds += days.holds
                rows = days.table("orders")
                rescued = sum(1 for row in rows if row["_rescued"])
                print(
                    f"seed {seed}: {len(days.story)} acts, {len(rows)} rows, {rescued} with rescued values", flush=True
                )
    print(f"no value is lost; {kills} kills, {holds} checkpoints held for new columns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
