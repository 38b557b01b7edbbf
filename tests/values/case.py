"""One seed: a small table of one type, some uses of it at once, cut into checkpoints; every reader against Spark's own
answer over all rows at once.

A use that `check` refuses is left out, if the refusal names it and the column. If rows of a use are refused in a
checkpoint before it is decided, and the refusal is about values, which `check` cannot see, it is tried again with
refused="quarantine": then each row is either published or in quarantine. A sink with keys is left out instead.
"""

from __future__ import annotations

import random
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tidegate.testing
from tests.kit.postgres import Server
from tests.values.edges import KINDS
from tests.values.exact import differences, exact_rows
from tests.values.inputs import Input
from tests.values.places import CONNECTION, NAMESPACE, Places
from tests.values.readers import Reading, readers_of, set_aside, states, wanted_by
from tests.values.roles import ROLES, Column, Role
from tidegate.errors import Invalid, TidegateError
from tidegate.pipeline import Pipeline
from tidegate.sinks import DeltaAppend, DeltaUpsert, FileExport, IcebergAppend, PostgresAppend, PostgresUpsert
from tidegate.testing import RunningPipeline

__all__ = ["SINKS", "Case", "ValuesReport"]

FILES = ("parquet", "csv", "json")
SINKS = ("delta", *FILES, "iceberg", "postgres")

OF_VALUES = frozenset({"BAD_ROWS"})
"""Reasons of refusals that depend on rows."""

RESULTS = (
    *("before", "closing", "every", "first", "holder", "least", "most", "opening", "renamed", "set", "value"),
    *("window_start", "window_end"),
)
"""Columns that roles make of it."""

_MOST_TRIES = 8


@dataclass
class ValuesReport:
    """What was tried, and what was found."""

    wrong: list[str] = field(default_factory=list)
    tried: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """Type, role, source and sink."""
    read: Counter[str] = field(default_factory=Counter)
    """By reader."""
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Type and role, by `check`."""
    refused_rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By a checkpoint."""
    quarantined: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows that a target would refuse, by type and role."""
    checkpoints: int = 0

    def add(self, other: ValuesReport) -> None:
        self.wrong += other.wrong
        self.tried += other.tried
        self.read += other.read
        self.refused += other.refused
        self.refused_rows += other.refused_rows
        self.quarantined += other.quarantined
        self.checkpoints += other.checkpoints

    def __str__(self) -> str:
        kinds, roles, sources, sinks = ({each[place] for each in self.tried} for place in range(4))
        return (
            f"{len(kinds)} types × {len(roles)} roles × {len(sources)} sources × {len(sinks)} sinks × {len(self.read)} "
            f"readers: {self.tried.total()} uses ({len(self.tried)} different), {self.read.total()} readings, "
            f"{self.checkpoints} checkpoints; {self.refused.total()} uses refused by check, "
            f"{self.refused_rows.total()} by their rows, of which {self.quarantined.total()} went to quarantine: "
            f"{len(self.wrong)} wrong"
        )


@dataclass(frozen=True)
class Use:
    """A role, and where its rows go."""

    role: Role
    to: str
    """A sink of SINKS."""
    in_job: bool = False
    quarantines: bool = False
    """Whether rows go to quarantine that its target would refuse."""

    @property
    def uid(self) -> str:
        return self.role.name.replace(" ", "-")

    def is_hashed(self, column: Column) -> bool:
        """Whether the key of the sink is a hash of the column, since sinks do not take its type for a key."""
        return bool(self.role.keys) and "" in (self.role.keys or ()) and not self.role.order and not column.kind.is_key

    def __str__(self) -> str:
        return f"{self.role.name} to {self.to}{' in a job of its own' if self.in_job else ''}"


@dataclass(frozen=True)
class Case:
    """One seed's rows and uses."""

    given: Input
    uses: tuple[Use, ...]
    finishes: bool

    @classmethod
    def of(
        cls,
        seed: int,
        kind: str | None = None,
        format: str | None = None,
        roles: Sequence[str] = (),
        to: str | None = None,
        postgres: bool = False,
    ) -> Case:
        """kind, format, roles, to: these, in place of random ones. postgres: whether there is one."""
        dice = random.Random(seed)
        given = Input.of(dice, KINDS[kind] if kind else None, format, random.Random(f"drift {seed}"))
        finishes = dice.random() < 0.6
        able = [role for role in ROLES.values() if role.fits(given.column) and (finishes or not role.finishes)]
        chosen = [ROLES[name] for name in roles] or dice.sample(able, dice.choice([3, 4, 5]))
        uses = []
        for role in chosen:
            sink, in_job = _to(role, dice), dice.random() < 0.15
            uses.append(Use(role, to or ("delta" if sink == "postgres" and not postgres else sink), in_job))
        return cls(given, tuple(uses), finishes or any(role.finishes for role in chosen))

    def __str__(self) -> str:
        return f"{self.given}; {', '.join(map(str, self.uses))}{'; finishes' if self.finishes else ''}"

    def play(self, folder: Path, spark: Any, postgres: Server | None = None) -> ValuesReport:
        """Run it."""
        told = ValuesReport()
        try:
            self.given.write(spark, folder / "landing").createOrReplaceTempView("all_rows")
            self._play(folder, spark, postgres, told)
        except Exception:
            told.wrong.append("raises: " + "".join(traceback.format_exc(limit=-6))[-2500:])
        return told

    def _play(self, folder: Path, spark: Any, postgres: Server | None, told: ValuesReport) -> None:
        uses = self.uses
        for attempt in range(_MOST_TRIES):
            if not uses:
                return
            root = folder / str(attempt)
            places = Places(root / "places", postgres)
            places.make({use.to for use in uses})
            pipeline = self._pipeline(uses, folder)
            with tidegate.testing.run(pipeline, root, spark=spark, settings=places.settings) as running:
                left = self._checked(running, uses, told)
                if left == uses:
                    left = self._run(running, uses, told)
                if left == uses:
                    for use in uses:
                        self._read(use, running, places, spark, told)
                    return
                uses = left
            shutil.rmtree(root, ignore_errors=True)
        told.wrong.append(f"after {_MOST_TRIES} tries something is still refused: {[use.role.name for use in uses]}")

    # -- the pipeline --------------------------------------------------------------------------------------

    def _pipeline(self, uses: Sequence[Use], folder: Path) -> Pipeline:
        pipeline = Pipeline("values", finishes=self.finishes)
        column = self.given.column
        rows = self.given.declare(pipeline, folder / "landing")
        in_time = None
        if any(use.role.by_value for use in uses):
            in_time = self.given.declare_in_time(pipeline, folder / "landing")
        for use in uses:
            start = in_time if use.role.by_value and in_time is not None else rows
            stream = use.role.declare(start.job(use.uid) if use.in_job else start, column, use.uid)
            if use.is_hashed(column):
                stream = stream.select("*", f"{column.hashed} AS hash", name=f"{use.uid}-hashed")
            stream.sink(use.uid, _sink(use, column), refused="quarantine" if use.quarantines else "abort")
        return pipeline

    def _checked(self, running: RunningPipeline, uses: tuple[Use, ...], told: ValuesReport) -> tuple[Use, ...]:
        """The uses that `check` does not refuse."""
        try:
            problems = [str(error) for error in running.errors()]
        except Invalid as error:
            problems = re.split(r"\n\s*\d+\. ", str(error))[1:] or [str(error)]
        refused = set()
        for problem in problems:
            whose = [use for use in uses if re.search(rf"(?<![\w-]){use.uid}(?!\w)", problem)]
            if not whose:
                told.wrong.append(f"a refusal names none of {[use.uid for use in uses]}: {problem}")
                return ()
            if not self._is_named(problem):
                told.wrong.append(f"a refusal does not name the column {self.given.column.name!r}: {problem}")
            refused.update(whose)
            for use in whose:
                told.refused[self.given.column.kind.name, use.role.name] += 1
        return tuple(use for use in uses if use not in refused)

    def _is_named(self, text: str, whose: Sequence[Use] = ()) -> bool:
        """Whether a refusal has the name of the column that it is about. whose: one of these may have refused a row for
        its key, which is null where a join has found nothing."""
        column, keys = self.given.column, {key for use in whose for key in use.role.keys or () if key}
        return any(
            name in text for name in (repr(column.name), column.name, column.quoted, *map(repr, (*RESULTS, *keys)))
        )

    def _run(self, running: RunningPipeline, uses: tuple[Use, ...], told: ValuesReport) -> tuple[Use, ...]:
        """Make all checkpoints. Return the same uses if no row was refused, otherwise the uses to try next."""
        try:
            done = running.until_idle()
        except TidegateError as error:
            able = [use for use in uses if not use.quarantines]
            whose = [use for use in able if use.uid in str(error)] or [use for use in able if _may_refuse_rows(use)]
            if error.reason not in OF_VALUES or not self._is_named(str(error), whose) or not whose:
                told.wrong.append(f"check passes, and a checkpoint fails: {error.reason}: {str(error)[:1500]}")
                return ()
            for use in whose:
                told.refused_rows[self.given.column.kind.name, use.role.name] += 1
            kept = [use for use in uses if use not in whose]
            again = [replace(use, quarantines=True) for use in whose if use.role.keys is None]
            return (*kept, *again)
        told.checkpoints += len(done)
        if len(done) != len(self.given.bounds):
            told.wrong.append(f"{len(done)} checkpoints of {len(self.given.bounds)} cuts")
        return uses

    # -- what must be there --------------------------------------------------------------------------------

    def _read(self, use: Use, running: RunningPipeline, places: Places, spark: Any, told: ValuesReport) -> None:
        column = self.given.column
        wanted = spark.sql(self._sql(use.role.wanted)).toArrow()
        columns = list(wanted.schema.names)
        rows = exact_rows(wanted, columns)
        if use.quarantines:
            aside = self._refused(use, running, spark, columns)
            if wrong := differences(aside & rows, aside):
                told.wrong.append(f"{use}: rows in quarantine that are none of its rows: {wrong}")
            told.quarantined[column.kind.name, use.role.name] += aside.total()
            rows = rows - aside
            if not rows and use.to == "iceberg":
                return  # its first rows create the table
        path = running.data / "out" / use.uid
        it = Reading(running, spark, use.uid, path, wanted.schema, self.given, places)
        told.tried[column.kind.name, use.role.name, self.given.format, use.to] += 1
        for name, reader in readers_of(use.to).items():
            try:
                found = reader(it)
                wrong = "" if found is None else differences(found, wanted_by(name, rows))
            except Exception:
                found, wrong = None, traceback.format_exc(limit=-4)
            told.read[name] += found is not None
            if wrong:
                told.wrong.append(f"{use} read by {name}: {wrong}")
        if use.role.state and (held := states(it, use.uid)) != rows.total():
            told.wrong.append(f"{use}: {held} keys in its state, {rows.total()} in its answer")

        if use.role.aside:
            aside = spark.sql(self._sql(use.role.aside)).count()
            if (held := set_aside(it, use.uid) if aside else 0) != aside:
                told.wrong.append(f"{use}: {held} rows in quarantine, {aside} must be there")

    def _refused(self, use: Use, running: RunningPipeline, spark: Any, columns: Sequence[str]) -> Counter[Any]:
        """The rows that are in quarantine, as the target would refuse them."""
        table = Path(running.settings.root) / running.pipeline.name / "quarantine" / f"{use.uid}-refused"
        if not table.exists():
            return Counter()  # the error did not say which use was refused, and it was another one
        rows = spark.read.format("delta").load(str(table))
        return exact_rows(rows.select(*(f"`{name}`" for name in columns)).toArrow(), columns)

    def _sql(self, text: str) -> str:
        column = self.given.column
        is_text = column.kind.type == "string" and not column.kind.made
        stored = f"nullif({column.quoted}, '') AS {column.quoted}" if is_text else column.quoted
        return text.replace("{stored}", stored).replace("{v}", column.quoted).replace("{rows}", "all_rows")


def _may_refuse_rows(use: Use) -> bool:
    """Whether its sink does not take all values: what it says of rows does not name it."""
    return use.role.partition or use.to in ("csv", "json", "postgres", "iceberg")


def _to(role: Role, dice: random.Random) -> str:
    if role.partition:
        return dice.choice(["delta", "delta", *(FILES if role.keys is None else ())])
    return dice.choice(["delta", "delta", "postgres"] if role.keys is not None else ["delta", *SINKS])


def _sink(use: Use, column: Column) -> Any:
    path, table = f"out/{use.uid}", use.uid.replace("-", "_")
    partition_by = [column.name] if use.role.partition else []
    if use.role.keys is not None:
        value = "hash" if use.is_hashed(column) else column.name
        keys, order_by = [name or value for name in use.role.keys], [name or column.name for name in use.role.order]
        if use.to == "postgres":
            return PostgresUpsert(table, connection=CONNECTION, keys=keys, order_by=order_by)
        return DeltaUpsert(path, keys=keys, order_by=order_by, partition_by=partition_by)
    if use.to == "postgres":
        return PostgresAppend(table, connection=CONNECTION)
    if use.to == "iceberg":
        return IcebergAppend(f"{NAMESPACE}.{table}", connection=NAMESPACE)
    if use.to == "delta":
        return DeltaAppend(path, partition_by=partition_by)
    return FileExport(path, format=use.to, partition_by=partition_by)  # type: ignore[arg-type]
