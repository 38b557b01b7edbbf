"""What every operator of one's own promises, as tests, without Spark: in Arrow, as its workers call it."""

from __future__ import annotations

import random  # noqa: TID251 - seeded, for tests
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tidegate.connectors.ddl import parse_ddl
from tidegate.operators.custom import Clock, KeyedKernel, KeyedOperator
from tidegate.records.moments import micros_of
from tidegate.state.arrow.kernel_worker import IS_CURRENT
from tidegate.state.columns import DELETED, GROUP

__all__ = ["OperatorContract"]

Row = Mapping[str, Any]
PLANNED = datetime(2026, 1, 1, tzinfo=UTC)
END = datetime(9999, 1, 1, tzinfo=UTC)
_IN_ORDER = (
    ". Earlier rows may come in a later checkpoint: an operator that goes by the order of time keeps rows in its state "
    "until the watermark has passed them"
)


class OperatorContract:
    """Subclass it as `class TestMyOperator(OperatorContract)`, and implement `operator` and `rows`.

    Rows are dictionaries; times are datetimes in UTC. With an event time, the watermark is the greatest time less
    `delay`, and rows come at most so late.
    """

    delay: timedelta = timedelta(0)

    # -- what a subclass says ----------------------------------------------------------------------------

    def operator(self) -> KeyedOperator:
        """Return the operator, made anew: each call stands for another process."""
        raise NotImplementedError

    def schema(self) -> Any:
        """Return the columns of its input, as a schema of Arrow's."""
        raise NotImplementedError

    def rows(self, dice: random.Random) -> Sequence[Row]:
        """Return rows of a few keys, in the order in which they come."""
        raise NotImplementedError

    # -- the tests ---------------------------------------------------------------------------------------

    def test_its_declaration_has_no_problem(self) -> None:
        assert self.operator().problems() == []

    @pytest.mark.parametrize("seed", range(20))
    def test_what_it_gives_does_not_depend_on_how_rows_are_cut_into_checkpoints(self, seed: int) -> None:
        rows, dice = self.rows(random.Random(seed)), random.Random(seed)
        whole, cut = self._played([rows]), self._played(_cut(rows, dice))
        rest = "" if self.operator().event_time is None else _IN_ORDER
        assert cut.held == whole.held, f"what it shows, or has given, in the end depends on the cut{rest}"
        if self.operator().replaces_rows:
            assert cut.state == whole.state, f"what it keeps of each key in the end depends on the cut{rest}"

    @pytest.mark.parametrize("seed", range(20))
    def test_the_order_in_which_rows_of_a_checkpoint_come_does_not_matter(self, seed: int) -> None:
        rows, dice = self.rows(random.Random(seed)), random.Random(seed)
        cuts = _cut(rows, dice)
        shuffled = [dice.sample(each, len(each)) for each in cuts]
        assert self._played(shuffled) == self._played(cuts)

    @pytest.mark.parametrize("seed", range(20))
    def test_keys_may_be_worked_on_apart(self, seed: int) -> None:
        """As workers do, each of which has some of the keys."""
        rows, dice = self.rows(random.Random(seed)), random.Random(seed)
        cuts, by = _cut(rows, dice), self.operator().by
        alone = _Played(self.operator(), self.schema(), self.delay, apart=True)
        alone.play(cuts)
        assert alone == self._played(cuts), f"the rows of one key of {', '.join(by)} have had a part in another's"

    @pytest.mark.parametrize("seed", range(20))
    def test_two_attempts_give_the_same(self, seed: int) -> None:
        rows, dice = self.rows(random.Random(seed)), random.Random(seed)
        cuts = _cut(rows, dice)
        assert self._played(cuts) == self._played(cuts), "it goes by something that it is not given"

    def test_without_rows_nothing_happens(self) -> None:
        played = self._played([[]])
        assert not played.held
        assert not played.state

    # -- help --------------------------------------------------------------------------------------------

    def _played(self, cuts: Sequence[Sequence[Row]]) -> _Played:
        played = _Played(self.operator(), self.schema(), self.delay)
        played.play(cuts)
        return played


def _cut(rows: Sequence[Row], dice: random.Random) -> list[list[Row]]:
    """Cut the rows in a few places, or in many."""
    cuts = dice.choice([dice.randrange(6), len(rows)])
    places = sorted(dice.randrange(len(rows) + 1) for _ in range(cuts))
    return [list(rows[low:high]) for low, high in zip([0, *places], [*places, len(rows)], strict=True)]


@dataclass
class _Played:
    """An operator's life."""

    operator: KeyedOperator = field(compare=False)
    schema: Any = field(compare=False)
    delay: timedelta = field(compare=False)
    apart: bool = field(default=False, compare=False)
    """Whether each key is worked on alone."""
    state: dict[str, Row] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    """The rows that it has given and not taken back."""

    def play(self, cuts: Sequence[Sequence[Row]]) -> None:
        """Make a checkpoint of each, and one at the end in which every time has passed."""
        before: datetime | None = None
        is_timed, time = self.operator.spec().uses_event_time, self.operator.event_time
        for number, rows in enumerate([*cuts, []]):
            times = [row[time] - self.delay for row in rows if time is not None and row[time] is not None]
            known = [*times, *([before] if before is not None else [])]
            now = max(known) if known else None
            if number == len(cuts) and is_timed:
                now = END
            clock = Clock(PLANNED + timedelta(minutes=number), now if is_timed else None, before if is_timed else None)
            for keys in self._parts(rows):
                self._checkpoint([row for row in rows if self._key(row) in keys], keys, clock)
            self.held = Counter({row: count for row, count in self.held.items() if count})
            before = now

    def _parts(self, rows: Sequence[Row]) -> list[set[str]]:
        keys = dict.fromkeys([self._key(row) for row in rows] + list(self.state))
        return [{key} for key in keys] if self.apart else [set(keys)]

    def _checkpoint(self, rows: Sequence[Row], part: set[str], clock: Clock) -> None:
        """Let the operator work on these rows, and on the keys that are due. part: all keys that it may know of."""
        import pyarrow as pa

        operator, time = self.operator, self.operator.event_time
        keys = {self._key(row) for row in rows}
        mine = {key: row for key, row in self.state.items() if key in part}
        stored = [row for key, row in mine.items() if key in keys or self._is_due(row, clock.watermark)]
        if not rows and not stored:
            return
        kept = pa.schema([*(self.schema.field(name) for name in operator.by), *_columns(operator.state)])
        own = {
            GROUP: pa.array([0] * len(rows), pa.int32()),
            "_at": pa.array([_micros(row[time]) if time is not None else 0 for row in rows], pa.int64()),
            "_row": pa.array([repr(sorted(row.items())) for row in rows], pa.string()),
        }
        arrived = pa.Table.from_pylist(list(rows), self.schema)
        for name, column in own.items():
            arrived = arrived.append_column(name, column)
        known = pa.Table.from_pylist(stored, kept).append_column(GROUP, pa.array([0] * len(stored), pa.int32()))
        late = None if clock.before is None else _micros(clock.before)
        emits = pa.schema(_columns(operator.emits))
        folded = KeyedKernel(operator, self.schema.names, kept.names, clock, late, emits)(arrived, [known])
        for given in folded.rows:
            for row in given.to_pylist():
                sign = 1 if row.pop(IS_CURRENT, True) else -1
                self.held[repr(row)] += sign
        for row in folded.changes[0].drop_columns([GROUP]).to_pylist():
            gone = row.pop(DELETED)
            self.state[self._key(row)] = row
            if gone:
                del self.state[self._key(row)]

    def _is_due(self, row: Row, watermark: datetime | None) -> bool:
        due = row[self.operator.due] if self.operator.due is not None else None
        return due is not None and watermark is not None and bool(due < watermark)

    def _key(self, row: Row) -> str:
        return repr([row[name] for name in self.operator.by])


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else micros_of(moment)


def _columns(ddl: str) -> list[tuple[str, Any]]:
    """Return columns of SQL with their types in Arrow."""
    return [(column.name, _type(column.type)) for column in parse_ddl(ddl)]


def _type(text: str) -> Any:
    import pyarrow as pa

    if text.startswith("array<"):
        return pa.list_(_type(text[6:-1]))
    if text.startswith("struct<"):
        return pa.struct(_columns(text[7:-1]))
    if found := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", text):
        return pa.decimal128(int(found[1]), int(found[2]))
    plain = {"string": pa.string(), "boolean": pa.bool_(), "float": pa.float32(), "double": pa.float64()}
    plain |= {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
    plain |= {"date": pa.date32(), "binary": pa.binary()}
    plain |= {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
    assert text in plain, f"{text}: a column of this type cannot be kept in this test"
    return plain[text]
