"""A source with rows that a test provides, one step of them per checkpoint. It can fail on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from tidegate import seams
from tidegate.connectors.source import Planned, Source, SourceContext, is_at_least
from tidegate.errors import Invalid, Unavailable
from tidegate.records.codec import fingerprint
from tidegate.records.records import Amount, Json
from tidegate.testing.crashes import Crash

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Call", "TestSource"]

Call = Literal["plan", "verify", "read"]
Row = Mapping[str, Any]


class TestSource(Source):
    """A source with rows that a test provides, in steps. Each checkpoint reads one step.

        orders = TestSource("id long, amount double", [{"id": 1, "amount": 5.0}])
        orders.arrive({"id": 2, "amount": 7.5}, {"id": 3})

    schema: the columns, in DDL.
    steps: lists of rows. Each row is a dict; columns that it lacks are null.
    """

    __test__ = False  # pytest takes classes called Test… for tests

    kind: ClassVar[str] = "test"

    def __init__(self, schema: str, *steps: Sequence[Row]) -> None:
        self.schema = schema
        self.steps: list[list[dict[str, Any]]] = [[dict(row) for row in step] for step in steps]
        self._crashes: list[str] = []
        self._away: dict[str, int] = {}
        self._late: dict[str, float] = {}

    # -- for tests ---------------------------------------------------------------------------------------

    def arrive(self, *rows: Row) -> None:
        """Add a step with these rows."""
        self.steps.append([dict(row) for row in rows])

    def crash_at(self, call: Call) -> None:
        """Simulate a crash of the process in the next call of `plan`, `verify` or `read`."""
        self._crashes.append(_checked(call))

    def away_at(self, call: Call, times: int = 1) -> None:
        """Raise Unavailable in the next `times` calls."""
        self._away[_checked(call)] = times

    def late_at(self, call: Call, seconds: float) -> None:
        """Delay the next call by this many seconds."""
        self._late[_checked(call)] = seconds

    def lose(self, step: int) -> None:
        """Lose the rows of a step, counted from 0. Ranges with them can no longer be read."""
        self.steps[step] = []

    # -- the contract of a source ------------------------------------------------------------------------

    def describe(self) -> Json:
        return {"kind": self.kind, "schema": self.schema}

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        self._answer("plan")
        step = start["step"] if start is not None else 0
        upto = min(step + 1, len(self.steps))
        splits = {"from": step, "to": upto, "hash": self._hash(step, upto)}
        rows = sum(map(len, self.steps[step:upto]))
        return Planned(
            end={"step": upto},
            splits=splits,
            is_empty=upto == step,
            has_more=upto < len(self.steps),
            summary=f"{rows} rows",
        )

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        return is_at_least(position, other, "step")

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        self._answer("verify")
        if self._hash(splits["from"], splits["to"]) != splits["hash"]:
            raise Invalid(
                f"source {context.source!r}: the rows of step {splits['from']} are not those that were planned",
                expected="the rows as they arrived",
                help="the test has lost or changed them",
                reason="INPUT_CHANGED",
            )
        return Amount(rows=len(self._rows(splits)))

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        self._answer("read")
        empty = spark.createDataFrame([], self.schema)
        rows = []
        for row in self._rows(splits):
            rows.append(tuple(row.get(name) for name in empty.columns))
        if rows:
            return spark.createDataFrame(rows, empty.schema)
        return empty

    def _rows(self, splits: Json) -> list[dict[str, Any]]:
        return [row for step in self.steps[splits["from"] : splits["to"]] for row in step]

    def _hash(self, step: int, upto: int) -> str:
        return fingerprint([sorted(row.items()) for rows in self.steps[step:upto] for row in rows])

    def _answer(self, call: str) -> None:
        seconds = self._late.pop(call, 0.0)
        if seconds:
            seams.Seams().sleep(seconds)  # the real one: `run` shortens seams.sleep
        if call in self._crashes:
            self._crashes.remove(call)
            raise Crash(f"the source's {call}")
        if self._away.get(call, 0):
            self._away[call] -= 1
            raise Unavailable(f"the source does not answer: {call}", help="it is retried", reason="TEST_SOURCE")


def _checked(call: str) -> str:
    if call not in get_args(Call):
        raise Invalid(
            f"a source has no call {call!r} that could fail here",
            expected=" or ".join(get_args(Call)),
            help="use one of them",
            reason="NO_SUCH_CALL",
        )
    return call
