"""Which files are merged, which are dropped, and when what hides older rows may be forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.delta import StagedFile
from tidegate.state import StateFile
from tidegate.state.compaction import FAN_IN, MERGED_ROWS, debt, expired, to_merge


def file(
    checkpoint: int, rows: int = 100, oldest: int | None = None, groups: Any = (0, 63), size: int = 1, **more: Any
) -> StateFile:
    staged = StagedFile(path=f"{checkpoint}-{groups[0]}.parquet", size=size, rows=rows)
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


def test_a_set_that_is_far_too_large_is_merged_in_parts() -> None:
    rows = MERGED_ROWS // 4
    (batch,) = to_merge([file(n, rows=rows + n, oldest=1) for n in range(1, 2 * FAN_IN + 1)])
    assert [each.checkpoint for each in batch.files] == [1, 2, 3], "as many as may be"
    assert not batch.forgets, "older ones stay behind"
    (batch,) = to_merge([file(n, rows=MERGED_ROWS - n, oldest=1) for n in range(1, FAN_IN + 1)])
    assert [each.checkpoint for each in batch.files] == [8, 7], "two at least, or it would never be done"


def test_each_core_adds_to_what_a_checkpoint_may_merge() -> None:
    sides = [(n * 16, n * 16 + 15) for n in range(8)]
    files = [file(n, rows=MERGED_ROWS // 8, oldest=1, groups=side) for side in sides for n in range(1, FAN_IN + 1)]
    assert [len(to_merge(files, cores)) for cores in (1, 2, 8, 16)] == [1, 2, 8, 8]
    assert debt(files) == 8 * MERGED_ROWS


def test_only_files_that_lie_above_one_another_are_merged() -> None:
    deep = [file(n, groups=(0, 31)) for n in range(1, FAN_IN + 1)]
    shallow = [file(n, groups=(32, 63)) for n in range(1, FAN_IN)]
    (batch,) = to_merge([*deep, *shallow])
    assert list(batch.files) == deep
    assert (batch.rows_within(0, 32), batch.rows_within(0, 8), batch.rows_within(32, 64)) == (800, 200, 0)


@pytest.mark.parametrize(
    ("changed", "cores"), [(24_000_000, 2), (24_000_000, 16), (200_000_000, 2), (100_000, 2), (1_000, 4)]
)
def test_merging_keeps_pace_with_any_number_of_changed_rows(changed: int, cores: int) -> None:
    """As many rows in each checkpoint, all with keys of their own: the worst there is."""
    layers, merged = [], 0
    files: list[StateFile] = []
    ranges = [(128 * n // cores, 128 * (n + 1) // cores - 1) for n in range(cores)]
    for checkpoint in range(1, 401):
        for number, batch in enumerate(to_merge(files, cores)):
            merged += batch.rows
            files = [each for each in files if each not in batch.files]
            files += [
                file(checkpoint - 1, int(rows), min(each.oldest for each in batch.files), span, size=number)
                for span in ranges
                if (rows := batch.rows_within(span[0], span[1] + 1))
            ]
        files += [file(checkpoint, changed // cores, groups=span) for span in ranges]
        layers.append(len(files) / cores)
    assert max(layers) <= 50, "1,600 files after 200 checkpoints, and more with each, when the bound was fixed"
    assert merged <= 6 * changed * 400, "each row is rewritten about once per tier"


def test_a_file_whose_rows_have_all_expired_goes_without_being_read_but_not_before_older_ones() -> None:
    old, young, silent = file(1, touched=100), file(2, touched=200), file(3, touched=None)
    assert expired([old, young, silent], 150) == [old]
    assert expired([young, old, silent], 200) == [old, young]
    assert expired([file(1, touched=300), young], 250) == [], "its rows hide older ones, which have not expired"
