"""`why` on random pipelines against plain Python: the records named are enough, and none is named without cause."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sampling import in_turn, some_of
from tests.spark.small_pipeline import SmallPipeline
from tests.spark.why_pipelines import KINDS, Row, made_of_cuts, records_of
from tidegate.delta import open_table
from tidegate.delta.files.access import Location
from tidegate.provenance.explanation import Explanation, explain_row, prepare

pytestmark = in_turn(seconds=90)

SUITE = """
name: positive
expectations:
  - {type: expect_column_values_to_be_between, kwargs: {column: v, min_value: 0}, id: positive}
"""
SEEDS = range(35)


class Lives(SmallPipeline):
    """A random pipeline with its records."""

    def __init__(self, root: Path, spark: Any, kind: str, dice: random.Random) -> None:
        super().__init__(root, spark, KINDS[kind].build)
        self.kind, self.cuts = kind, records_of(dice, kind)
        (root / "include" / "expectations").mkdir(parents=True)
        (root / "include" / "expectations" / "positive.yaml").write_text(SUITE)
        self.limit(num_retained=20)

    @property
    def place(self) -> Any:
        from tidegate.records.place import Place

        return Place(str(self.root), project=str(self.root))

    def play_all(self) -> None:
        for cut in self.cuts:
            for source, rows in cut.items():
                if rows:
                    self.feed(rows, source)
            self.checkpoint()

    def table_as_of(self, id: int) -> Any:
        published = self.ledger.published(id)
        table = published.tables.get("table") if published is not None else None
        return open_table(Location(table.uri), table.version) if table is not None else None

    def why(self, row: Row, folder: Path) -> Explanation:
        """Ask about a row of the table."""
        named = [name for name in KINDS[self.kind].keys if name in row]
        condition = " AND ".join(f"{name} {_is(row[name])}" for name in named)
        asked = prepare(
            self.coordinator(), "table", condition, self.ledger.settled(), self.table_as_of, over=None, replays=300,
            candidates=1000,
        )  # fmt: skip
        return explain_row(asked, self.spark, folder)

    def rows_with(self, chosen: Collection[tuple[int, str, int]]) -> list[Row]:
        """What plain Python makes of some records: by cut, source and number in it."""
        cuts: list[dict[str, Sequence[Row]]] = []
        for place, cut in enumerate(self.cuts):
            cuts.append({
                source: [row for number, row in enumerate(rows) if (place, source, number) in chosen]
                for source, rows in cut.items()
            })  # fmt: skip
        columns = KINDS[self.kind].columns
        return [{name: row[name] for name in columns} for row in made_of_cuts(self.kind, cuts)]


def _is(value: Any) -> str:
    if value is None:
        return "IS NULL"
    return f"= {value}" if isinstance(value, int) else f"= '{value}'"


@pytest.mark.parametrize("seed", some_of(SEEDS, 5))
def test_the_named_records_are_enough_and_none_is_named_without_cause(seed: int, tmp_path: Path, spark: Any) -> None:
    dice = random.Random(seed)
    kind = list(KINDS)[seed % len(KINDS)]
    lives = Lives(tmp_path / "shop", spark, kind, dice)
    lives.play_all()
    every = {
        (place, source, number)
        for place, cut in enumerate(lives.cuts)
        for source, rows in cut.items()
        for number in range(len(rows))
    }
    table = lives.table_as_of(lives.ledger.settled())
    shown = table.handle.to_pyarrow_table().to_pylist() if table is not None else []
    columns = KINDS[kind].columns
    shown = [{name: row[name] for name in columns} for row in shown]
    expected = lives.rows_with(every)
    assert all(row in expected for row in shown), "the model is not this pipeline"
    if not shown:
        pytest.skip("the table of this seed has no row")
    row = dice.choice(shown)
    answer = lives.why(row, tmp_path / "scratch")
    named = {_found(lives, record) for record in answer.records}
    assert answer.unproven == 0
    assert lives.rows_with(named).count(row) == 1, "the named records alone do not make the row"
    for record in named:
        assert row not in lives.rows_with(named - {record}), f"{record} is named without cause"
    assert answer.since == _since(lives, row)


def _found(lives: Lives, record: Any) -> tuple[int, str, int]:
    """The record in the test's own input, by what the answer says of it."""
    ids = [plan.id for plan in _plans(lives)]
    place = ids.index(record.checkpoint)
    number = int(record.place.split()[1]) - 1
    own = lives.cuts[place][record.source][number]
    for name in ("id", "name"):
        assert own.get(name) == record.values.get(name), "the place is wrong"
    return place, record.source, number


def _plans(lives: Lives) -> list[Any]:
    ledger = lives.ledger
    return [plan for id in ledger.ids() if (plan := ledger.plan(id)) is not None]


def _since(lives: Lives, row: Row) -> int:
    """The first checkpoint since which the table has the row."""
    since = 0
    for plan in reversed(_plans(lives)):
        table = lives.table_as_of(plan.id)
        shown = table.handle.to_pyarrow_table().to_pylist() if table is not None else []
        if not any(all(one[name] == row[name] for name in row) for one in shown):
            break
        since = plan.id
    return since
