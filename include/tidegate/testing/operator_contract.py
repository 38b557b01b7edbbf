"""The contract of custom operators, as tests. They need no Spark: the kernel runs on Arrow tables, as in a worker."""

from __future__ import annotations

import random  # noqa: TID251 - seeded, for tests
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.connectors.schema.ddl import parse_ddl
from tidegate.operators.custom import Clock, KeyedKernel, KeyedOperator
from tidegate.records.moments import micros_of
from tidegate.state.arrow.kernel_worker import IS_CURRENT
from tidegate.state.columns import DELETED, GROUP

__all__ = ["OperatorContract"]

Row = Mapping[str, Any]
PLANNED = datetime(2026, 1, 1, tzinfo=UTC)
END = datetime(9999, 1, 1, tzinfo=UTC)
_IN_ORDER = (
    ". Earlier rows may arrive in a later checkpoint: an operator that depends on the order of time must keep rows in "
    "its state until the watermark has passed them"
)


class OperatorContract:
    """Tests that every custom operator must pass. Subclass it, and implement `operator`, `schema` and `rows`.

        class TestMyOperator(OperatorContract):
            def operator(self):
                return MyOperator(by="k")

            def schema(self):
                return pa.schema([("k", pa.string()), ("v", pa.int64())])

            def rows(self, dice):
                return [{"k": dice.choice("ab"), "v": dice.randrange(5)} for _ in range(20)]

    Rows are dictionaries, and times are datetimes in UTC. If the operator uses event time, the watermark is the
    greatest time minus `delay`, so rows may arrive that late.
    """

    delay: timedelta = timedelta(0)

    # -- to be implemented -------------------------------------------------------------------------------

    def operator(self) -> KeyedOperator:
        """Return a new operator. Each call stands for another process."""
        raise NotImplementedError

    def schema(self) -> Any:
        """Return the Arrow schema of the input."""
        raise NotImplementedError

    def rows(self, dice: random.Random) -> Sequence[Row]:
        """Return rows of a few keys, in the order of their arrival."""
        raise NotImplementedError

    # -- the tests ---------------------------------------------------------------------------------------

    def test_its_declaration_has_no_problem(self) -> None:
        assert self.operator().problems() == []

    @pytest.mark.parametrize("seed", range(20))
    def test_what_it_gives_does_not_depend_on_how_rows_are_cut_into_checkpoints(self, seed: int) -> None:
        rows, dice = self.rows(random.Random(seed)), random.Random(seed)
        whole, cut = self._played([rows]), self._played(_cut(rows, dice))
        hint = "" if self.operator().event_time is None else _IN_ORDER
        assert cut.output == whole.output, f"its output depends on how rows are cut into checkpoints{hint}"
        if self.operator().replaces_rows:
            assert cut.state == whole.state, f"its state depends on how rows are cut into checkpoints{hint}"

    @pytest.mark.parametrize("seed", range(20))
    def test_the_order_in_which_rows_of_a_checkpoint_come_does_not_matter(self, seed: int) -> None:
        rows, dice = self.rows(random.Random(seed)), random.Random(seed)
        cuts = _cut(rows, dice)
        shuffled = [dice.sample(each, len(each)) for each in cuts]
        assert self._played(shuffled) == self._played(cuts)

    @pytest.mark.parametrize("seed", range(20))
    def test_keys_may_be_worked_on_apart(self, seed: int) -> None:
        """Each worker gets some of the keys."""
        rows, dice = self.rows(random.Random(seed)), random.Random(seed)
        cuts, keys = _cut(rows, dice), self.operator().by
        separate = _Simulation(self.operator(), self.schema(), self.delay, key_by_key=True)
        separate.play(cuts)
        assert separate == self._played(cuts), f"rows of one key of {', '.join(keys)} affect the result of another"

    @pytest.mark.parametrize("seed", range(20))
    def test_two_attempts_give_the_same(self, seed: int) -> None:
        rows, dice = self.rows(random.Random(seed)), random.Random(seed)
        cuts = _cut(rows, dice)
        assert self._played(cuts) == self._played(cuts), "its result depends on more than its arguments"

    def test_without_rows_nothing_happens(self) -> None:
        played = self._played([[]])
        assert not played.output
        assert not played.state

    # -- helpers -----------------------------------------------------------------------------------------

    def _played(self, cuts: Sequence[Sequence[Row]]) -> _Simulation:
        simulation = _Simulation(self.operator(), self.schema(), self.delay)
        simulation.play(cuts)
        return simulation


def _cut(rows: Sequence[Row], dice: random.Random) -> list[list[Row]]:
    """Cut the rows in a few places, or in many."""
    count = dice.choice([dice.randrange(6), len(rows)])
    places = sorted(dice.randrange(len(rows) + 1) for _ in range(count))
    return [list(rows[low:high]) for low, high in zip([0, *places], [*places, len(rows)], strict=True)]


@dataclass
class _Simulation:
    """An operator over several checkpoints. Two simulations are equal if their states and outputs are."""

    operator: KeyedOperator = field(compare=False)
    schema: Any = field(compare=False)
    delay: timedelta = field(compare=False)
    key_by_key: bool = field(default=False, compare=False)
    """Whether the kernel is called for each key separately."""
    state: dict[str, Row] = field(default_factory=dict)
    output: Counter[str] = field(default_factory=Counter)
    """The rows that were emitted and not retracted."""

    def play(self, cuts: Sequence[Sequence[Row]]) -> None:
        """Make a checkpoint of each cut, and a last one at the end of event time."""
        before: datetime | None = None
        is_timed, time = self.operator.spec().uses_event_time, self.operator.event_time
        for number, rows in enumerate([*cuts, []]):
            marks = []
            for row in rows:
                if time is not None and row[time] is not None:
                    marks.append(row[time] - self.delay)
            if before is not None:
                marks.append(before)
            now = max(marks, default=None)
            if number == len(cuts) and is_timed:
                now = END
            clock = Clock(PLANNED + timedelta(minutes=number), now if is_timed else None, before if is_timed else None)
            for keys in self._parts(rows):
                self._checkpoint([row for row in rows if self._key(row) in keys], keys, clock)
            self.output = Counter({row: count for row, count in self.output.items() if count})
            before = now

    def _parts(self, rows: Sequence[Row]) -> list[set[str]]:
        keys = dict.fromkeys([self._key(row) for row in rows] + list(self.state))
        if self.key_by_key:
            return [{key} for key in keys]
        return [set(keys)]

    def _checkpoint(self, rows: Sequence[Row], part: set[str], clock: Clock) -> None:
        """Call the kernel with these rows, and with the stored rows of their keys and of keys that are due.

        part: the keys to which the call is limited.
        """
        import pyarrow as pa

        operator, time = self.operator, self.operator.event_time
        keys = {self._key(row) for row in rows}
        stored = []
        for key, row in self.state.items():
            if key in part and (key in keys or self._is_due(row, clock.watermark)):
                stored.append(row)
        if not rows and not stored:
            return
        state_schema = pa.schema([*(self.schema.field(name) for name in operator.by), *_columns(operator.state)])
        added_columns = {
            GROUP: pa.array([0] * len(rows), pa.int32()),
            "_at": pa.array([_micros(row[time]) if time is not None else 0 for row in rows], pa.int64()),
            "_row": pa.array([repr(sorted(row.items())) for row in rows], pa.string()),
        }
        arrived = pa.Table.from_pylist(list(rows), self.schema)
        for name, column in added_columns.items():
            arrived = arrived.append_column(name, column)
        state = pa.Table.from_pylist(stored, state_schema)
        state = state.append_column(GROUP, pa.array([0] * len(stored), pa.int32()))
        late = None if clock.before is None else _micros(clock.before)
        emits = pa.schema(_columns(operator.emits))
        kernel = KeyedKernel(operator, self.schema.names, state_schema.names, clock, late, emits)
        result = kernel(arrived, [state])
        for emitted in result.rows:
            for row in emitted.to_pylist():
                sign = 1 if row.pop(IS_CURRENT, True) else -1
                self.output[repr(row)] += sign
        for row in result.changes[0].drop_columns([GROUP]).to_pylist():
            is_deleted = row.pop(DELETED)
            self.state[self._key(row)] = row
            if is_deleted:
                del self.state[self._key(row)]

    def _is_due(self, row: Row, watermark: datetime | None) -> bool:
        due = row[self.operator.due] if self.operator.due is not None else None
        return due is not None and watermark is not None and bool(due < watermark)

    def _key(self, row: Row) -> str:
        return repr([row[name] for name in self.operator.by])


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else micros_of(moment)


def _columns(ddl: str) -> list[tuple[str, Any]]:
    """Return the columns of a DDL schema with their Arrow types."""
    return [(column.name, _type(column.type)) for column in parse_ddl(ddl)]


def _type(text: str) -> Any:
    import pyarrow as pa

    if text.startswith("array<"):
        return pa.list_(_type(text[6:-1]))
    if text.startswith("struct<"):
        return pa.struct(_columns(text[7:-1]))
    decimal = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", text)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    plain = {"string": pa.string(), "boolean": pa.bool_(), "float": pa.float32(), "double": pa.float64()}
    plain |= {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
    plain |= {"date": pa.date32(), "binary": pa.binary()}
    plain |= {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
    assert text in plain, f"{text}: a column of this type cannot be kept in this test"
    return plain[text]
