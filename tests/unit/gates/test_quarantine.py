"""The table of rows that were set aside: what marking them has replaced goes when nobody can come back to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.delta import schema, staged
from tidegate.connectors.delta.sink.table import StagedBatch, staged_result
from tidegate.connectors.sink import Publication, SinkContext, Staging
from tidegate.delta import Location, live_files, open_table
from tidegate.errors import Invalid
from tidegate.gates.quarantine.columns import ID, SETTLED
from tidegate.gates.quarantine.reader import QuarantinedRows
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.records.place import Place
from tidegate.records.records import Json

COLUMNS = schema(**{ID: "string", "v": "long", SETTLED: "string"})


class Aside:
    """A gate's quarantine, of which rows wait or are marked, a checkpoint at a time."""

    def __init__(self, root: Path) -> None:
        self.sink = QuarantineSink("checked")
        self.context = SinkContext("p", "u1", "quarantine.checked", Place(str(root)), home=str(root))
        self.location = Location(self.sink.path(str(root)))

    def checkpoint(self, id: int, rows: dict[str, str | None], *, marking: bool = False) -> set[str]:
        """Publish; the table's files from then on."""
        table = pa.table({ID: list(rows), "v": [id] * len(rows), SETTLED: pa.array(list(rows.values()), pa.string())})
        folder = Staging(id, f"attempt{id}").folder(self.context)
        batch = StagedBatch(columns=COLUMNS, files=staged(self.location, folder, table, COLUMNS))
        committable: Json | None = staged_result(batch, len(rows)).committable
        head = self.sink.head(self.context)
        marked = {"marked": committable} if marking else committable
        assert self.sink.replaces(marked) is marking
        assert self.sink.publish(Publication(id, 0, f"attempt{id}", head.last_entry, (marked,)), head, self.context)
        return self.live()

    def live(self) -> set[str]:
        snapshot = open_table(self.location)
        assert snapshot is not None
        return {file.path for file in live_files(snapshot)}

    def there(self) -> set[str]:
        root = Path(self.location.url)
        return {str(path.relative_to(root)) for path in root.rglob("*.parquet")}


@pytest.fixture
def aside(tmp_path: Path) -> Any:
    """Two checkpoints set rows aside; of each, the third marks one. The fourth has nothing for it."""
    aside = Aside(tmp_path)
    aside.checkpoint(1, {"a": None, "b": None})
    aside.two = aside.checkpoint(2, {"c": None})
    aside.three = aside.checkpoint(3, {"a": "released"}, marking=True)
    return aside


def test_files_that_marking_has_replaced_go_with_the_last_checkpoint_that_has_them(aside):
    (first,) = aside.two - aside.three - {path for path in aside.two if "/00000002/" in path}
    aside.sink.retire_replaced(1, [2], aside.context)
    assert first in aside.there(), "checkpoint 2 has it"
    aside.sink.retire_replaced(2, [3], aside.context)
    assert first not in aside.there(), "nobody can go back to it any more"
    assert aside.live() <= aside.there()


def test_what_a_pinned_checkpoint_has_stays(aside):
    before = aside.there()
    aside.sink.retire_replaced(2, [3, 1], aside.context)
    assert aside.there() == before, "checkpoint 1 is a savepoint"
    aside.sink.retire_replaced(1, [3], aside.context)
    assert aside.live() <= aside.there() < before


def test_a_checkpoint_that_put_nothing_there_has_what_was_there_before(aside):
    before = aside.there()
    aside.checkpoint(5, {"d": None})
    aside.sink.retire_replaced(4, [5], aside.context)
    assert before <= aside.there()
    aside.sink.retire_replaced(2, [4, 5], aside.context)
    assert before - aside.there() == aside.two - aside.three


def test_what_a_checkpoint_behind_it_that_put_nothing_there_has_stays(aside):
    before = aside.there()
    aside.checkpoint(5, {"c": "released"}, marking=True)
    aside.sink.retire_replaced(3, [4, 5], aside.context)
    assert before <= aside.there(), "checkpoint 4 has what 3 had"
    aside.sink.retire_replaced(4, [5], aside.context)
    assert not before <= aside.there()


# -- corrections -----------------------------------------------------------------------------------------

COLUMN_TYPES = {
    "n": pa.int64(),
    "v": pa.float64(),
    "d": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "is": pa.bool_(),
    "amount": pa.decimal128(12, 2),
    "text": pa.string(),
}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> QuarantinedRows:
    location = Location(str(tmp_path_factory.mktemp("aside")))
    fields = [*COLUMN_TYPES.items(), (ID, pa.string())]
    write_deltalake(location.url, pa.table({name: pa.array([], kind) for name, kind in fields}))
    snapshot = open_table(location)
    assert snapshot is not None
    return QuarantinedRows("checked", snapshot)


@pytest.mark.parametrize(
    ("column", "right", "wrong"),
    [
        ("n", ["16", "-7", "007", None], ["0x10", "1_000", "1.0", " 1", "", "much"]),
        ("v", ["0.5", "-1e3", ".5", "NaN", "-inf"], ["0x1p3", "1d", "half"]),
        ("d", ["2026-01-31"], ["2026-1-31", "20260131", "2026-02-30"]),
        ("at", ["2026-01-31T12:00:00Z", "2026-01-31 12:00:00.5+01:00"], ["2026-01-31T12:00:00", "2026-01-31 12Z"]),
        ("local", ["2026-01-31 12:00:00"], ["2026-01-31 12", "2026-01-31 12:00"]),
        ("is", ["true", "False"], ["yes", "1", "t"]),
        ("amount", ["12.50", "-3"], ["0x1", "1,50", "1.005"]),
        ("text", ["0x10", ""], []),
    ],
)
def test_a_correction_is_one_that_spark_reads_as_it_was_checked(
    typed: QuarantinedRows, column: str, right: list[str | None], wrong: list[str]
) -> None:
    for value in right:
        typed.refuse_corrections({column: value})
    for value in wrong:
        with pytest.raises(Invalid) as caught:
            typed.refuse_corrections({column: value})
        assert caught.value.reason == "BAD_VALUE", value
        assert "such as" in caught.value.expected
