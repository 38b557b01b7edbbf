"""Files of a state as workers read, merge and write them, compared with dictionaries."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import Invalid
from tidegate.state.arrow import keys_as_numbers, reducing, sorted_files
from tidegate.state.arrow.kernel_worker import Lookup, LookupKeys
from tidegate.state.arrow.matching import Matcher
from tidegate.state.arrow.merging import MergePlan
from tidegate.state.arrow.reducing import reduced
from tidegate.state.arrow.sorted_files import SortedFile, StateLayout, Writer, merged
from tidegate.state.columns import CHECKPOINT, DELETED, GROUP

TEXTS = ["", "a", "é", "zz", *(f"key {n}" for n in range(60))]
MOMENT = datetime(1969, 12, 31, 23, 0, tzinfo=UTC)
INF = float("inf")
HIGH = [2**63 - 1 - n for n in range(40)]
EDGES = [*HIGH, *(-(2**63) + n for n in range(20)), *range(-20, 20), *(2**53 + n for n in range(20))]
FAR = [datetime(1, 1, 1), *(datetime(9999, 12, 31, 23, 59, 59, 999999 - n) for n in range(40))]  # noqa: DTZ001
KINDS: dict[str, tuple[dict[str, pa.DataType], Any]] = {
    "numbers": ({"k": pa.int64()}, lambda r: (r.randint(-40, 60),)),
    "texts": ({"k": pa.string()}, lambda r: (r.choice(TEXTS),)),
    "texts or null": ({"k": pa.string()}, lambda r: (r.choice([None, *TEXTS]),)),
    "numbers or null": ({"k": pa.int32()}, lambda r: (r.choice([None, *range(60)]),)),
    "days": ({"k": pa.date32()}, lambda r: (date(1970, 1, 1) + timedelta(days=r.randint(-40, 40)),)),
    "moments": ({"k": pa.timestamp("us", "UTC")}, lambda r: (MOMENT + timedelta(minutes=r.randint(0, 90)),)),
    "numbers at the edges": ({"k": pa.int64()}, lambda r: (r.choice(EDGES),)),
    "short numbers at the edges": ({"k": pa.int16()}, lambda r: (r.choice([-(2**15), 2**15 - 1, *range(60)]),)),
    "two numbers at the edges": ({"k": pa.int64(), "l": pa.int8()}, lambda r: (r.choice(EDGES), r.choice([-128, 127]))),
    "two numbers at one edge": ({"k": pa.int64(), "l": pa.int64()}, lambda r: (r.choice(HIGH), r.choice([-1, 0, 1]))),
    "moments at the edges": ({"k": pa.timestamp("us")}, lambda r: (r.choice(FAR),)),
    "decimals": ({"k": pa.decimal128(9, 2)}, lambda r: (Decimal(r.randint(-50, 50)).scaleb(-2),)),
    "numbers with fractions": ({"k": pa.float64()}, lambda r: (r.choice([None, 0.0, 1.5, -2.0, 1e300, -INF, INF]),)),
    "short ones": ({"k": pa.float32()}, lambda r: (r.choice([0.0, 1.5, -2.0, 0.25, *range(30)]),)),
    "yes or no": ({"k": pa.bool_()}, lambda r: (r.choice([None, True, False]),)),
    "bytes": ({"k": pa.binary()}, lambda r: (r.choice([None, b"", b"\xff", *(b"%d" % n for n in range(40))]),)),
    "three columns": (
        {"k": pa.string(), "l": pa.int64(), "m": pa.bool_()},
        lambda r: (r.choice([None, "a", "b"]), r.choice([None, 1, 2, 3]), r.choice([None, True, False])),
    ),
}


def layout_of(keys: dict[str, pa.DataType]) -> StateLayout:
    own = [(GROUP, pa.int32()), (CHECKPOINT, pa.int64()), (DELETED, pa.bool_())]
    return StateLayout(tuple(keys), pa.schema([*keys.items(), *own, ("v", pa.int64())]))


def group_of(key: tuple[Any, ...]) -> int:
    return len(repr(key)) % 4


def write(layout: StateLayout, path: Path, rows: dict[Any, tuple[int, int, bool]]) -> SortedFile:
    """One file: key → checkpoint, value, whether it is deleted."""
    columns: dict[str, Any] = {n: [key[at] for key in rows] for at, n in enumerate(layout.keys)}
    columns |= {GROUP: [group_of(key) for key in rows], CHECKPOINT: [r[0] for r in rows.values()]}
    columns |= {DELETED: [r[2] for r in rows.values()], "v": [r[1] for r in rows.values()]}
    table = pa.table({field.name: pa.array(columns[field.name], field.type) for field in layout.schema})
    table = table.take(pa.array(keys_as_numbers.order_of(table, layout.keys)))
    writer = Writer(layout, str(path))
    for start in range(0, table.num_rows, 7):
        writer.write(table.slice(start, 7))
    assert writer.close() == (len(rows), path.stat().st_size)
    groups = [group_of(key) for key in rows]
    return SortedFile(str(path), (min(groups), max(groups)))


@pytest.mark.parametrize("kind", KINDS)
def test_of_files_whose_checkpoints_overlap_the_newest_row_of_each_key_counts(kind: str) -> None:
    """As those do that were merged at different times: neither file is newer than the other."""
    keys, draw = KINDS[kind]
    layout, dice = layout_of(keys), random.Random(79)
    one, other = sorted({draw(dice) for _ in range(40)}, key=str)[:2]

    def part(ages: dict[tuple[Any, ...], int]) -> pa.Table:
        columns: dict[str, Any] = {n: [key[at] for key in ages] for at, n in enumerate(layout.keys)}
        columns |= {GROUP: [group_of(key) for key in ages], CHECKPOINT: list(ages.values())}
        return pa.table(columns | {DELETED: [False, False], "v": list(ages.values())}, schema=layout.schema)

    for first, second in (({one: 1, other: 4}, {one: 3, other: 2}), ({one: 3, other: 2}, {one: 1, other: 4})):
        rows = sorted_files.newest(layout, [part(first), part(second)])
        assert sorted(rows["v"].to_pylist()) == [3, 4]


def told(layout: StateLayout, table: pa.Table) -> dict[Any, tuple[int, int, bool]]:
    rows = table.to_pylist()
    found = {tuple(r[k] for k in layout.keys): (r[CHECKPOINT], r["v"], r[DELETED]) for r in rows}
    assert len(found) == len(rows), "a key twice"
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_row_of_each_key_is_found_and_survives_a_merge(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_files, "GROUP_ROWS", 16)
    r, (keys, make) = random.Random(kind), KINDS[kind]
    layout = layout_of(keys)
    newest: dict[Any, tuple[int, int, bool]] = {}
    files = []
    for number, checkpoint in enumerate([3, 1, 2, 7, 5]):
        rows = {make(r): (checkpoint, r.randint(0, 99), r.random() < 0.2) for _ in range(r.choice([1, 30, 80]))}
        files.append(write(layout, tmp_path / f"{number}.parquet", rows))
        newest |= {key: row for key, row in rows.items() if key not in newest or newest[key][0] < checkpoint}

    everything = merged(layout, files, range(4))
    assert told(layout, everything) == newest
    upper = merged(layout, files, range(2, 4))
    assert told(layout, upper) == {key: row for key, row in newest.items() if group_of(key) >= 2}

    wanted = list({make(r) for _ in range(25)})
    batch = pa.table({n: pa.array([key[at] for key in wanted], t) for at, (n, t) in enumerate(keys.items())})
    batch = batch.take(pa.array(keys_as_numbers.order_of(batch, layout.keys)))
    wanted = [tuple(row.values()) for row in batch.to_pylist()]
    seen = looked_up(layout, files, batch)
    living = {key: newest[key][1] for key in wanted if key in newest and not newest[key][2]}
    assert {tuple(row[k] for k in layout.keys): row["v"] for row in seen} == living
    assert len(seen) == len(living)


def looked_up(layout: StateLayout, files: list[SortedFile], batch: pa.Table) -> list[dict[str, Any]]:
    """The newest living row of each key of the batch."""
    merging = MergePlan(
        layout=layout, groups=4, count=1, checkpoint=9, expiry_time=None, limit=None, folder="", runs=files, batches=[]
    )
    found = Lookup(merging, layout.keys).rows(LookupKeys.all_under_keys(batch, layout.keys), range(4), 1 << 40)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    layout = layout_of({"k": pa.int64()})
    run = write(layout, tmp_path / "a.parquet", {(n,): (1, n, False) for n in range(10, 20)})
    batch = pa.table({"k": pa.array([1, 2, 99])})
    assert looked_up(layout, [run], batch) == looked_up(layout, [], batch) == []


def test_row_groups_are_skipped_by_their_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_files, "GROUP_ROWS", 10)
    layout = layout_of({"k": pa.int64()})
    run = write(layout, tmp_path / "a.parquet", {(n,): (1, n, False) for n in range(100)})
    matcher = Matcher(pa.table({"k": pa.array([31, 33, 78])}), ["k"])
    with sorted_files.opened(run) as file:
        read = [n for n in range(file.num_row_groups) if matcher.may_be_in(file.metadata.row_group(n), 0)]
    assert read == [3, 7]


def batches(values: list[Any], kind: pa.DataType, size: int = 5) -> list[pa.RecordBatch]:
    table = pa.table({"k": pa.array([n % 4 for n in range(len(values))]), "v": pa.array(values, kind)})
    return table.to_batches(max_chunksize=size)


@pytest.mark.parametrize("reduce_at", [3, 1_000_000])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [None if n % 3 == 0 else n * 7 - 40 for n in range(40)]),
        (pa.int64(), [n * 7 - 40 for n in range(40)]),
        (pa.decimal128(20, 2), [None if n % 8 == 0 else Decimal(n).scaleb(-2) for n in range(40)]),
        (pa.int16(), [None if n % 4 == 0 else n - 20 for n in range(40)]),
        (pa.date32(), [None if n % 8 == 0 else date(1970, 1, 20) - timedelta(days=n) for n in range(40)]),
        (pa.timestamp("us", "UTC"), [None if n % 8 == 0 else MOMENT - timedelta(minutes=n) for n in range(40)]),
        (pa.string(), [None if n % 4 == 0 else f"{n % 7}" for n in range(40)]),
        (pa.bool_(), [None if n % 8 == 0 else n % 12 < 6 for n in range(40)]),
    ],
    ids=lambda told: str(told) if isinstance(told, pa.DataType) else "values",
)
def test_rows_become_one_per_key(
    kind: pa.DataType, values: list[Any], reduce_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducing, "REDUCE_AT", reduce_at)
    ops: dict[str, Any] = {"sum": sum, "min": min, "max": max}
    if not (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        del ops["sum"]
    for op, plain in ops.items():
        table = reduced(batches(values, kind), ["k"], {"v": op})
        assert table is not None
        of_key = {k: [v for n, v in enumerate(values) if n % 4 == k and v is not None] for k in range(4)}
        expected = {k: plain(known) if known else None for k, known in of_key.items()}
        assert {row["k"]: row["v"] for row in table.to_pylist()} == expected


def test_no_rows_are_no_table() -> None:
    assert reduced([], ["k"], {"v": "sum"}) is None
    assert reduced(batches([], pa.int64()), ["k"], {"v": "sum"}) is None


def test_a_sum_that_does_not_fit_is_an_error_and_one_that_only_passes_the_limit_on_its_way_is_not() -> None:
    huge = 2**62
    with pytest.raises(Invalid, match="overflow"):
        reduced(batches([huge] * 16, pa.int64()), ["k"], {"v": "sum"})
    around = [huge, 0, 0, 0, huge, 0, 0, 0, -huge, 0, 0, 0]
    table = reduced(batches(around, pa.int64()), ["k"], {"v": "sum"})
    assert table is not None
    assert table["v"].to_pylist()[0] == huge
    with pytest.raises(Invalid, match="overflow"):
        reducing.combined(pa.array([2**63 - 1]), pa.array([1]), "sum")


@pytest.mark.parametrize("edge", [2**63 - 1, 2**63 - 2, -(2**63), 0])
def test_one_key_at_the_edge_hides_no_other(edge: int, tmp_path: Path) -> None:
    """With the greatest number there is, what comes after the last row of a file was less than all of them."""
    layout = layout_of({"k": pa.int64()})
    run = write(layout, tmp_path / "a.parquet", {(n,): (1, n % 100, False) for n in {1, 2, 3, edge}})
    batch = pa.table({"k": pa.array(sorted({2, 3, edge}))})
    assert sorted(row["k"] for row in looked_up(layout, [run], batch)) == sorted({2, 3, edge})


def test_statistics_are_compared_as_whole_numbers(tmp_path: Path) -> None:
    """As floats, 2**53 + 1 and the greatest number of all are each the same as others beside them."""
    layout = layout_of({"k": pa.int64()})
    run = write(layout, tmp_path / "a.parquet", {(2**63 - 1,): (1, 1, False)})
    with sorted_files.opened(run) as file:
        group = file.metadata.row_group(0)
        assert Matcher(pa.table({"k": pa.array([2**63 - 1])}), ["k"]).may_be_in(group, 0)
        assert not Matcher(pa.table({"k": pa.array([2**63 - 2])}), ["k"]).may_be_in(group, 0)
    near = write(layout, tmp_path / "b.parquet", {(2**53 + 1,): (1, 1, False)})
    with sorted_files.opened(near) as file:
        assert not Matcher(pa.table({"k": pa.array([2**53, 2**53 + 2])}), ["k"]).may_be_in(
            file.metadata.row_group(0), 0
        )


@pytest.mark.parametrize(
    ("type_", "one", "two"),
    [
        (pa.decimal128(9, 2), Decimal("1.00"), Decimal("1.01")),
        (pa.string(), "a", "b"),
        (pa.int64(), 1, 2),
        (pa.bool_(), False, True),
    ],
    ids=str,
)
def test_keys_of_any_type_are_numbered_alike_also_where_there_are_none(type_: pa.DataType, one: Any, two: Any) -> None:
    none = pa.table({"k": pa.chunked_array([], type_)})
    some = pa.table({"k": pa.array([one, two, None, one], type_)})
    assert [len(codes) for codes in keys_as_numbers.codes_of([none, none], ["k"])] == [0, 0]
    nothing, codes = keys_as_numbers.codes_of([none, some], ["k"])
    assert len(nothing) == 0
    assert codes[0] == codes[3]
    assert len(set(codes)) == 3


def some_keys(rng: np.random.Generator, rows: int) -> pa.Table:
    """Whatever keys: few or many, far apart, with nulls, several columns of them."""
    spread = [2, 50, 1 << 40, (1 << 63) - 1]

    def column() -> pa.Array:
        numbers = rng.integers(-rng.choice(spread), rng.choice(spread), rows)
        halves = [None if number % 7 == 0 else (number % 11) / 2 for number in numbers.tolist()]
        kinds: list[pa.Array] = [
            pa.array(halves, pa.float64()),
            pa.array([None if half is None else str(half).encode() for half in halves], pa.binary()),
            pa.array(numbers),
            pa.array(numbers, mask=numbers % 4 == 0),
            pa.array([None if number % 3 == 0 else "é"[number % 2 :] + str(number % 7) for number in numbers.tolist()]),
            pa.array((numbers % 9).astype("int32"), pa.date32()),
            pa.array([None if number % 5 == 0 else number % 2 == 0 for number in numbers.tolist()]),
            pa.array([Decimal(number % 11).scaleb(-1) for number in numbers.tolist()], pa.decimal128(4, 1)),
        ]
        return kinds[rng.integers(len(kinds))]

    return pa.table({f"k{place}": column() for place in range(rng.integers(1, 5))})


def tuples(rows: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows.to_pylist()]


@pytest.mark.parametrize("seed", range(60))
def test_rows_are_sorted_by_their_keys_nulls_last_and_equal_ones_by_age_or_as_they_stand(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = some_keys(rng, 60)
    keys = rows.column_names
    rows = rows.take(pa.array(rng.integers(0, 60, 90))).append_column(CHECKPOINT, pa.array(rng.integers(1, 9, 90)))
    in_order = [[(value is None, value or type(value)()) for value in row] for row in tuples(rows.select(keys))]
    ages = rows[CHECKPOINT].to_pylist()
    firsts = [n for n in range(90) if not n or sorted(in_order)[n] != sorted(in_order)[n - 1]]
    for newest_first, told in ((False, lambda n: (in_order[n], n)), (True, lambda n: (in_order[n], -ages[n], n))):
        places, starts = keys_as_numbers.order_and_firsts(rows, keys, newest_first)
        assert [*places] == sorted(range(90), key=told)
        assert [*starts] == firsts
        assert [*keys_as_numbers.order_of(rows, keys, newest_first)] == [*places]


@pytest.mark.parametrize("seed", range(60))
def test_what_a_batch_has_is_found_in_a_file_however_its_keys_are_numbered(seed: int) -> None:
    rng = np.random.default_rng(seed)
    both = some_keys(rng, 80)
    keys = both.column_names
    file = both.take(pa.array(rng.integers(0, 80, 70)))
    columns = [file[name].combine_chunks() for name in keys]
    batch = both.slice(0, 30) if seed % 10 else both.slice(0, 0)
    if keys_as_numbers.packed(batch, keys) is None:
        assert [*Matcher(batch, keys).all_rows_in(columns)] == [
            n for n, row in enumerate(tuples(file)) if row in tuples(batch)
        ], "each key as often as it likes"
    places, starts = keys_as_numbers.order_and_firsts(batch, keys)
    once = batch.take(pa.array(places[starts]))
    file_rows, batch_rows = Matcher(once, keys).rows_in(columns)
    assert tuples(file.take(pa.array(file_rows))) == tuples(once.take(pa.array(batch_rows)))
    if len(keys) > 1 or keys_as_numbers.packed(once, keys) is None:  # each row of a file of its own else
        assert sorted(file_rows) == [n for n, row in enumerate(tuples(file)) if row in tuples(once)]


def test_numbers_with_fractions_are_equal_as_in_spark_and_structs_by_what_they_hold() -> None:
    nan = float("nan")
    numbers = pa.array([0.0, -0.0, nan, -nan, None, 1.0])
    places = pa.array(
        [{"x": 0.0, "y": [nan]}, {"x": -0.0, "y": [nan]}, {"x": 1.0, "y": []}, None, {"x": None, "y": None}]
    )
    for column, equal in ((numbers, [(0, 1), (2, 3)]), (places, [(0, 1)])):
        rows = pa.table({"k": column})
        (codes,) = keys_as_numbers.codes_of([rows], ["k"])
        assert len(set(codes)) == len(codes) - len(equal)
        assert all(codes[one] == codes[other] for one, other in equal)
        for one, other in equal:
            found = Matcher(rows.slice(one, 1), ["k"]).all_rows_in([column])
            assert [*found] == [one, other]
        firsts = keys_as_numbers.order_and_firsts(rows, ["k"])[1]
        assert len(firsts) == len(set(codes))


def test_keys_too_far_apart_for_one_number_stay_apart() -> None:
    """As one number of 64 bits, the file's second row would be the batch's last."""
    batch = pa.table({"k": [0, *[1 << 61] * 7], "l": ["0", *(str(n) for n in range(7))]})
    file = pa.table({"k": [0, 0, 1 << 61], "l": ["0", "6", "6"]})
    columns = [file[name].combine_chunks() for name in file.column_names]
    assert [[*rows] for rows in Matcher(batch, ["k", "l"]).rows_in(columns)] == [[0, 2], [0, 7]]


def test_a_null_is_none_of_the_numbers_between_others() -> None:
    batch = pa.table({"k": [0, 9], "l": [0, 9]})
    columns = [pa.array([0, None, 0, 9]), pa.array([0, 0, None, 9])]
    assert [*Matcher(batch, ["k", "l"]).rows_in(columns)[0]] == [0, 3]


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_rows_have_the_same_number_where_their_keys_are_the_same(seed: int, small: bool) -> None:
    rng = np.random.default_rng(seed)
    both = some_keys(rng, 60)
    keys = both.column_names
    both = pa.concat_tables([both, both.take(pa.array(rng.integers(0, 60, 30)))])
    codes = np.concatenate(keys_as_numbers.codes_of([both.slice(0, 40), both.slice(40)], keys, small=small))
    told = tuples(both)
    assert len(codes) == len(told)
    assert len(set(zip(codes.tolist(), told, strict=True))) == len(set(codes.tolist())) == len(set(told))
    assert codes.min() >= 0
    assert codes.max() < (4 * len(codes) if small else 1 << 62)
