"""Which files are merged, which are dropped, and when what hides older rows may be forgotten."""

from __future__ import annotations

from typing import Any

from tidegate.delta import StagedFile
from tidegate.state import StateFile
from tidegate.state.compaction import FAN_IN, MERGED_ROWS, expired, to_merge


def file(checkpoint: int, rows: int = 100, oldest: int | None = None, groups: Any = (0, 63), **more: Any) -> StateFile:
    staged = StagedFile(path=f"{checkpoint}-{groups[0]}.parquet", size=1, rows=rows)
    return StateFile(file=staged, checkpoint=checkpoint, oldest=oldest or checkpoint, groups=groups, **more)


def test_eight_of_one_size_over_the_same_groups_become_one() -> None:
    assert to_merge([file(n) for n in range(1, FAN_IN)]) == []
    (batch,) = to_merge([file(n) for n in range(1, FAN_IN + 1)])
    assert len(batch.files) == FAN_IN
    assert to_merge([file(n, groups=(n * 8, n * 8 + 7)) for n in range(1, 20)]) == [], "side by side, not above another"


def test_a_large_file_is_left_alone_by_small_ones() -> None:
    (batch,) = to_merge([file(1, rows=1_000_000), *(file(n) for n in range(2, FAN_IN + 2))])
    assert all(each.file.rows == 100 for each in batch.files)
    assert not batch.forgets, "the large one is older: what is deleted above it still hides its rows"


def test_what_hides_nothing_any_more_is_forgotten_though_newer_files_are_there() -> None:
    small = [file(n) for n in range(1, FAN_IN + 1)]
    (batch,) = to_merge([*small, file(20, rows=1_000_000, oldest=FAN_IN + 1)])
    assert batch.forgets
    (batch,) = to_merge([*small, file(20, rows=1_000_000, oldest=FAN_IN - 1)])
    assert not batch.forgets
    (batch,) = to_merge([*small, file(20, rows=1_000_000, oldest=2, groups=(64, 127))])
    assert batch.forgets, "it holds other keys"


def test_merging_is_bounded_and_goes_on_all_the_same() -> None:
    (batch,) = to_merge([file(n, rows=MERGED_ROWS // 4 + n) for n in range(1, FAN_IN + 1)])
    assert [each.checkpoint for each in batch.files] == [1, 2, 3], "as many as may be"
    (first,) = to_merge([file(n, rows=MERGED_ROWS // 4 - n) for n in range(1, FAN_IN + 1)])
    assert [each.checkpoint for each in first.files] == [8, 7, 6, 5]
    assert first.forgets is False, "older ones stay behind"
    assert to_merge([file(n, rows=MERGED_ROWS) for n in range(1, FAN_IN + 1)]) == [], "one alone is all that may be"


def test_a_file_whose_rows_have_all_expired_goes_without_being_read_but_not_before_older_ones() -> None:
    old, young, silent = file(1, touched=100), file(2, touched=200), file(3, touched=None)
    assert expired([old, young, silent], 150) == [old]
    assert expired([young, old, silent], 200) == [old, young]
    assert expired([file(1, touched=300), young], 250) == [], "its rows hide older ones, which have not expired"
