"""Looking at a large quarantine: what is read is counted here, not seconds."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tidegate.errors import Invalid
from tidegate.gates.quarantine import columns as q
from tidegate.gates.quarantine import reader as module
from tidegate.gates.quarantine.reader import QuarantinedRows, open_quarantine
from tidegate.gates.quarantine.table import QuarantineSink
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Request

FILES, EACH = 10, 20_000
ALL = FILES * EACH


def rows(file: int) -> pa.Table:
    """Every second row of the last file was released; every tenth row of each broke `rare`, too."""
    places = range(file * EACH, (file + 1) * EACH)
    done = [file == FILES - 1 and n % 2 == 1 for n in places]
    return pa.table(
        {
            "amount": pa.array([float(n) for n in places]),
            "text": pa.array([f"a long text {n}" for n in places]),
            q.ID: [f"{n:032x}" for n in places],
            q.CHECKPOINT: pa.array([file + 1] * EACH, pa.int64()),
            q.STREAM: ["in"] * EACH,
            q.RULES: [["positive", "rare"] if n % 10 == 0 else ["positive"] for n in places],
            q.SETTLED: pa.array(["released" if each else None for each in done], pa.string()),
            q.SETTLED_IN: pa.array([12 if each else None for each in done], pa.int64()),
            q.SETTLED_BY: pa.array(["ann" if each else None for each in done], pa.string()),
        }
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200,000 rows in quarantine."""
    home = tmp_path_factory.mktemp("home")
    for file in range(FILES):
        write_deltalake(QuarantineSink("checked").path(str(home)), rows(file), mode="append")
    return home


class Read:
    """What was read: rows by how many columns of them."""

    def __init__(self) -> None:
        self.cells: Counter[bool] = Counter()
        self.rows: Counter[bool] = Counter()
        self.largest = 0

    @contextlib.contextmanager
    def parquet(self, *args: Any) -> Iterator[Any]:
        with self.real(*args) as file:
            yield Recorded(self, file)

    def real(self, *args: Any) -> Any:
        raise NotImplementedError


class Recorded:
    def __init__(self, read: Read, file: Any) -> None:
        self.read, self.file, self.num_row_groups = read, file, file.num_row_groups

    def iter_batches(self, **asked: Any) -> Iterator[Any]:
        whole = asked["columns"] is None
        for batch in self.file.iter_batches(**asked):
            self.read.rows[whole] += batch.num_rows
            self.read.largest = max(self.read.largest, batch.num_rows)
            yield batch


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    found = Read()
    found.real = module.open_parquet  # type: ignore[method-assign]
    monkeypatch.setattr(module, "open_parquet", found.parquet)
    monkeypatch.setattr(module, "_counts_by_file", type(module._counts_by_file)())
    monkeypatch.setattr(module, "_file_lists", type(module._file_lists)())
    return found


def opened(home: Path) -> QuarantinedRows:
    """As each request opens it."""
    found = open_quarantine(str(home), "checked", {})
    assert found is not None
    return found


def test_what_waits_is_counted_once_however_often_it_is_looked_at(home: Path, read: Read):
    for _ in range(5):
        told = opened(home).counts()
    assert (told.waiting, told.settled, told.complete) == (ALL - EACH // 2, {"released": EACH // 2}, True)
    assert told.rules == {"positive": ALL - EACH // 2, "rare": ALL // 10}
    assert read.rows == {False: ALL}, "each row once, and none of them whole"
    assert read.largest <= 65_536


def test_a_look_counts_no_more_than_its_budget_and_the_next_one_continues(home: Path, read: Read):
    first = opened(home).counts(budget=2 * EACH)
    assert read.rows[False] == 2 * EACH
    assert (first.complete, first.waiting) == (False, ALL - EACH // 2), "how many wait is told by the log"
    assert sum(first.rules.values()) < ALL
    looks = 1
    while not opened(home).counts(budget=2 * EACH).complete:
        looks += 1
    assert looks == FILES // 2 - 1
    assert read.rows[False] == ALL
    assert opened(home).counts(budget=0).complete, "nothing is left to be read"


def test_a_page_reads_what_it_shows(home: Path, read: Read):
    page = opened(home).page([], offset=3 * EACH + 5, limit=50)
    assert [row["amount"] for row in page.rows] == pytest.approx([row_of(home, 3 * EACH + 5 + n) for n in range(50)])
    assert (page.total, page.complete, page.columns) == (ALL - EACH // 2, True, ["amount", "text"])
    assert read.rows[False] <= 2 * EACH, "to find out where in its file the page begins"


def row_of(home: Path, place: int) -> float:
    """The amount of the row that waits at this place, read at once."""
    if not _amounts:
        for file in opened(home)._files:
            path = f"{QuarantineSink('checked').path(str(home))}/{file.path}"
            import pyarrow.parquet as pq

            table = pq.read_table(path)
            _amounts.extend(
                a for a, s in zip(*(table[c].to_pylist() for c in ("amount", q.SETTLED)), strict=True) if not s
            )
    return _amounts[place]


_amounts: list[float] = []


def test_pages_one_after_the_other_show_each_row_once(home: Path):
    aside, seen = opened(home), []
    for offset in range(0, ALL // 10, 4_000):
        page = aside.page(["rare"], offset, 4_000)
        assert page.total == ALL // 10
        seen += [row[q.ID] for row in page.rows]
    assert len(seen) == len(set(seen)) == ALL // 10
    assert all(int(id, 16) % 10 == 0 for id in seen)


def test_rows_of_any_of_several_rules(home: Path, read: Read):
    page = opened(home).page(["rare", "positive", "nothing"], 0, 1)
    assert page.total == ALL - EACH // 2
    assert opened(home).page(["nothing"], 0, 1).total == 0
    assert opened(home).page(["rare", "nothing"], 0, 1, budget=EACH).complete is False


def test_a_request_about_all_of_it_is_counted_a_batch_at_a_time(home: Path, read: Read):
    aside = opened(home)
    assert aside.last_checkpoint == FILES
    everything = Request(**stamp("0" * 16), number=1, gate="checked", action="release", seen=FILES, by="ann")
    assert aside.count(everything) == ALL - EACH // 2
    assert aside.count(everything, settled=True) == ALL
    assert (read.rows[True], read.largest <= 65_536) == (0, True)
    assert [row["amount"] for row in aside.first(everything, 3)]
    assert read.rows[True] <= 4_096


def test_a_row_is_found_by_how_its_id_begins(home: Path, read: Read):
    aside = opened(home)
    whole = f"{7:032x}"
    assert aside.whole_ids([whole]) == [whole]
    for text in ("0", "f", ""):
        with pytest.raises(Invalid, match="have an id that begins"):
            aside.whole_ids([text])
    assert read.rows[True] == 0
