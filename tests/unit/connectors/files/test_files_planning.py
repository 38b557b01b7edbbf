"""Which files come next: by name, by arrival, within bounds, whatever clocks say."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kit.sources import STRANGE, files, names, put
from tidegate import seams
from tidegate.connectors.files import source as source_module
from tidegate.connectors.files.folder import _LocalFolder
from tidegate.errors import Invalid, TidegateError, Unavailable
from tidegate.records.place import Place
from tidegate.records.records import Lag
from tidegate.sources import Files, SourceContext
from tidegate.testing.source_contract import MemoryBlobs, drain

ORDERS = ["name", "arrival"]


@pytest.mark.parametrize("order", ORDERS)
def test_each_file_once_in_order_of_names(context: SourceContext, landing: Path, order: str) -> None:
    put(landing, ["b.json", "a.json", "c.json"])
    source = files(order=order)
    plans, end = drain(source, context)
    assert [names(plan) for plan in plans] == [["a.json", "b.json", "c.json"]]
    put(landing, ["d.json"])
    plans, end = drain(source, context, end)
    assert [names(plan) for plan in plans] == [["d.json"]]
    assert drain(source, context, end) == ([], end)


@pytest.mark.parametrize("order", ORDERS)
def test_bounds_cut_a_range_short(context: SourceContext, landing: Path, order: str) -> None:
    put(landing, [f"{n}.json" for n in range(5)], "12345")
    plans, _ = drain(files(order=order, max_files=2), context)
    assert [len(names(plan)) for plan in plans] == [2, 2, 1]
    assert [plan.has_more for plan in plans] == [True, True, False]
    plans, _ = drain(files(order=order, max_bytes=12), context)
    assert [len(names(plan)) for plan in plans] == [2, 2, 1]


@pytest.mark.parametrize("order", ORDERS)
def test_what_waits_behind_a_range_is_told_in_files_bytes_and_seconds(
    context: SourceContext, landing: Path, order: str
) -> None:
    put(landing, [f"{n}.json" for n in range(4)], "12345")
    old = seams.now().timestamp() - 7200
    os.utime(landing / "3.json", (old, old))
    first = files(order=order, max_files=1).plan(None, context)
    assert first.lag is not None
    assert (first.lag.rows, first.lag.files, first.lag.bytes) == (None, 3, 15)
    assert first.lag.seconds is not None
    assert 7200 <= first.lag.seconds < 9000
    last = files(order=order).plan(first.end, context)
    assert last.lag == Lag(files=0, bytes=0)
    young = files(order=order, min_age=3600).plan(first.end, context)
    assert young.lag is not None
    assert young.lag.files == (3 if order == "name" else 2), "what is too young to be taken waits, too"


def test_of_very_many_files_that_wait_some_are_weighed(
    context: SourceContext, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(landing, [f"{n:02}.json" for n in range(13)], "12345")
    monkeypatch.setattr(source_module, "MAX_SAMPLED_FILES", 4)
    looked_at: list[str] = []
    look = _LocalFolder.stat
    monkeypatch.setattr(_LocalFolder, "stat", lambda self, name: looked_at.append(name) or look(self, name))
    planned = files(max_files=1).plan(None, context)
    assert planned.lag is not None
    assert (planned.lag.files, planned.lag.bytes) == (12, 60)
    assert len(looked_at) < 8


def test_at_least_one_file_is_taken_however_large(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json", "b.json"], "much more than one byte")
    plans, _ = drain(files(max_bytes=1), context)
    assert [names(plan) for plan in plans] == [["a.json"], ["b.json"]]


@pytest.mark.parametrize("order", ORDERS)
def test_planned_again_from_the_same_start_it_starts_at_the_same_place(
    context: SourceContext, landing: Path, order: str
) -> None:
    put(landing, ["a.json", "b.json"])
    source = files(order=order)
    start = source.plan(None, context).end
    put(landing, ["m.json"])
    first = source.plan(start, context)
    put(landing, ["n.json"])
    assert names(first) == ["m.json"]
    assert names(source.plan(start, context)) == ["m.json", "n.json"]


@pytest.mark.parametrize("kept", [("0b.json", "ff.json"), ("ff.json",), ()])
def test_by_default_each_new_file_is_read_whatever_its_name(
    context: SourceContext, landing: Path, kept: tuple[str, ...]
) -> None:
    """Names as Spark or a random id makes them: they do not rise, and what was read may be archived meanwhile."""
    put(landing, ["0b.json", "ff.json"])
    plans, end = drain(files(), context)
    for file in landing.iterdir():
        if file.name not in kept:
            file.unlink()
    put(landing, ["0a.json", "7c.json", "fe.json", "fg.json"])
    plans, end = drain(files(max_files=3), context, end)
    assert [names(plan) for plan in plans] == [["0a.json", "7c.json", "fe.json"], ["fg.json"]]
    assert all(plan.unread is None for plan in plans)
    assert drain(files(), context, end) == ([], end)


def test_by_name_a_late_file_is_not_read_and_each_plan_says_so(context: SourceContext, landing: Path) -> None:
    put(landing, ["b.json", "c.json"])
    source = files(order="name")
    end = source.plan(None, context).end
    put(landing, ["a.json", "b2.json", "d.json"])
    planned = source.plan(end, context)
    assert names(planned) == ["d.json"]
    assert planned.unread is not None
    assert planned.unread.count == 2
    assert "2 files have names below the last one that was read, 'c.json'" in planned.unread.what
    assert "'a.json', 'b2.json'" in planned.unread.what
    again = source.plan(planned.end, context)
    assert again.is_empty
    assert again.unread is not None
    assert again.unread.count == 2


def test_by_name_consumed_files_that_were_archived_do_not_hide_a_late_one(
    context: SourceContext, landing: Path
) -> None:
    put(landing, [f"b{n}.json" for n in range(10)])
    source = files(order="name")
    end = source.plan(None, context).end
    for file in landing.iterdir():
        file.unlink()
    put(landing, ["a.json"])
    unread = source.plan(end, context).unread
    assert unread is not None
    assert unread.count == 1


def test_a_position_made_in_order_of_names_continues_as_files_arrive(context: SourceContext, landing: Path) -> None:
    """As pipelines do that were made when the order of names was the default: nothing lost, nothing twice."""
    put(landing, ["b.json", "c.json", "d.json"])
    by_name = files(order="name", max_files=1)
    end = by_name.plan(by_name.plan(None, context).end, context).end
    put(landing, ["a.json"])
    first = by_name.plan(end, context)
    assert names(first) == ["d.json"]
    put(landing, ["b2.json", "e.json"])
    plans, end = drain(files(), context, first.end)
    assert [names(plan) for plan in plans] == [["a.json", "b2.json", "e.json"]]
    assert all(plan.unread is None for plan in plans)
    assert by_name.plan(end, context).is_empty
    assert by_name.plan(end, context).unread is None


def test_what_was_read_is_not_looked_at_again(
    context: SourceContext, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan meets every file that ever landed: it must cost little, most of all when nothing is new."""
    from tidegate.connectors.files.folder import FileStat, _LocalFolder

    put(landing, [f"{n}.json" for n in range(100, 200)])
    looks: list[str] = []
    look = _LocalFolder.stat

    def counted(self: _LocalFolder, name: str) -> FileStat | None:
        looks.append(name)
        return look(self, name)

    monkeypatch.setattr(_LocalFolder, "stat", counted)
    end = files().plan(None, context).end
    looks.clear()
    assert files().plan(end, context).is_empty
    assert looks == []
    put(landing, [f"{n}.json" for n in range(50)])
    assert files(max_files=3).plan(end, context).summary == "3 of 50 files, 19 B"
    assert sorted(set(looks)) == sorted(f"{n}.json" for n in range(50)), "those that are taken, and those that wait"


def test_by_arrival_a_late_file_is_read(context: SourceContext, landing: Path) -> None:
    put(landing, ["b.json"])
    source = files(order="arrival")
    end = source.plan(None, context).end
    put(landing, ["a.json"])
    assert names(source.plan(end, context)) == ["a.json"]


@pytest.mark.parametrize("order", ORDERS)
def test_scenario_19_modification_times_changed_by_a_copy_and_clocks_set_back_change_nothing(
    context: SourceContext, landing: Path, order: str
) -> None:
    put(landing, ["a.json", "b.json"])
    source = files(order=order)
    planned = source.plan(None, context)
    for file in landing.iterdir():
        os.utime(file, (1, 1))
    yesterday = seams.Seams(now=lambda: datetime(2000, 1, 1, tzinfo=UTC))
    with seams.installed(yesterday):
        source.verify(planned.splits, context)
        assert source.plan(planned.end, context).is_empty
        assert source.plan(None, context).splits == planned.splits


def test_a_file_that_was_archived_and_comes_back_is_not_read_again(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json", "b.json"])
    source = files(order="arrival")
    end = source.plan(None, context).end
    (landing / "a.json").unlink()
    end = source.plan(end, context).end
    put(landing, ["a.json"])
    assert source.plan(end, context).is_empty


def test_the_order_may_be_changed_later(context: SourceContext, landing: Path) -> None:
    put(landing, ["b.json", "c.json"])
    end = files(order="arrival", max_files=1).plan(None, context).end
    end = files(order="name").plan(end, context).end
    put(landing, ["a.json"])
    assert names(files(order="arrival").plan(end, context)) == ["a.json"]


def test_a_position_stays_small_and_each_plan_writes_little(
    context: SourceContext, landing: Path, blobs: MemoryBlobs
) -> None:
    put(landing, [f"{n:04d}.json" for n in range(600)], "x")
    plans, end = drain(files(order="arrival", max_files=3), context)
    assert len(plans) == 200
    assert end is not None
    assert len(end["seen"]) <= 6
    assert len(json.dumps(end)) < 1200
    assert len(blobs.files) == 200
    # Each of 600 hashes is written O(log n) times, not once per checkpoint (which would be 200 × 300 × 16 bytes).
    assert sum(len(data) for data in blobs.files.values()) < 600 * 16 * 16


def test_positions_and_splits_are_plain_json(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json", "ü\n%20.json"])
    planned = files().plan(None, context)
    for value in (planned.end, planned.splits):
        assert json.loads(json.dumps(value)) == value


@pytest.mark.parametrize("order", ORDERS)
def test_strange_names_are_found_once(context: SourceContext, landing: Path, order: str) -> None:
    put(landing, STRANGE)
    put(landing, [f"a=b/{name}" for name in STRANGE])
    plans, _ = drain(files("landing/**/*.json", order=order, max_files=5), context)
    found = [name for plan in plans for name in names(plan)]
    assert sorted(found) == sorted(STRANGE + [f"a=b/{name}" for name in STRANGE])
    for plan in plans:
        files().verify(plan.splits, context)


def test_hidden_and_temporary_files_are_ignored(context: SourceContext, landing: Path) -> None:
    put(
        landing,
        [".a.json", "_b.json", "c.json.tmp", "d.json.crc", "e.json.inprogress", "f.JSON.TMP", "g.json._COPYING_"],
    )
    put(landing, ["_temporary/h.json", ".hidden/i.json", "ok/j.json", "k.json"])
    assert names(files("landing/**", format="json").plan(None, context)) == ["k.json", "ok/j.json"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("landing/*.json", ["a.json", "b.json"]),
        ("landing/a.json", ["a.json"]),
        ("./landing//?.json", ["a.json", "b.json"]),
        ("landing/[!a].json", ["b.json"]),
        ("landing/*/*.json", ["x/c.json", "y/d.json"]),
        ("landing/x/*.json", ["c.json"]),
        ("landing/**/*.json", ["a.json", "b.json", "x/c.json", "x/z/e.json", "y/d.json"]),
        ("landing/**/**/e.json", ["x/z/e.json"]),
        ("landing/x/**", ["c.json", "z/e.json"]),
        ("landing/x/../*.json", ["a.json", "b.json"]),
        ("lan*/a.json", ["landing/a.json"]),
        ("landing/none*.json", []),
    ],
)
def test_patterns(context: SourceContext, landing: Path, pattern: str, found: list[str]) -> None:
    put(landing, ["a.json", "b.json", "x/c.json", "y/d.json", "x/z/e.json", "f.txt"])
    assert names(files(pattern, format="json").plan(None, context)) == found


def test_an_absolute_pattern_and_a_file_url_work(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json"])
    assert names(files(f"{landing}/*.json").plan(None, context)) == ["a.json"]
    assert names(files(f"file://{landing}/*.json").plan(None, context)) == ["a.json"]


def test_links_inside_the_folder_are_followed_and_others_refused(context: SourceContext, landing: Path) -> None:
    put(landing, ["old/a.dat"])
    (landing / "a.json").symlink_to(landing / "old/a.dat")
    assert names(files().plan(None, context)) == ["a.json"]
    secret = landing.parent / "secret.json"
    secret.write_text("{}")
    (landing / "b.json").symlink_to(secret)
    with pytest.raises(Invalid, match=r"lead out of the folder: 'b\.json'"):
        files().plan(None, context)


def test_a_file_replaced_by_a_link_after_the_plan_is_refused(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json"])
    planned = files().plan(None, context)
    (landing / "a.json").unlink()
    (landing / "a.json").symlink_to("/etc/passwd")
    with pytest.raises(Invalid, match="lead out of the folder"):
        files().verify(planned.splits, context)


def test_folders_behind_links_are_not_entered(context: SourceContext, landing: Path) -> None:
    put(landing, ["x/a.json"])
    (landing / "loop").symlink_to(landing)
    assert names(files("landing/**/*.json").plan(None, context)) == ["x/a.json"]
    (landing / "away").symlink_to("/etc")
    with pytest.raises(Invalid, match="'away'"):
        files("landing/**/*.json").plan(None, context)


def test_pipes_and_folders_that_match_are_no_files(context: SourceContext, landing: Path) -> None:
    os.mkfifo(landing / "pipe.json")
    (landing / "folder.json").mkdir()
    (landing / "broken.json").symlink_to(landing / "nothing")
    assert files().plan(None, context).is_empty


def test_a_name_that_is_no_utf8_is_refused(context: SourceContext, landing: Path) -> None:
    (Path(os.fsdecode(bytes(landing) + b"/\xff\xfe.json"))).write_text("{}")
    with pytest.raises(Invalid, match="not valid UTF-8"):
        files().plan(None, context)


def test_what_spark_cannot_be_told_is_refused_by_name(context: SourceContext, landing: Path) -> None:
    put(landing, ["12:00.json", "[1].json"])
    assert not files().plan(None, context).is_empty
    put(landing, ["[12:00].json"])
    with pytest.raises(Invalid, match=r"cannot read 1 file.*'\[12:00\]\.json'") as caught:
        files().plan(None, context)
    assert caught.value.reason == "BAD_FILE_NAME"


def test_a_missing_folder_is_an_error_at_first_and_an_outage_later(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json"])
    end = files().plan(None, context).end
    (landing / "a.json").unlink()
    landing.rmdir()
    with pytest.raises(Invalid, match="mkdir -p"):
        files().plan(None, context)
    with pytest.raises(Unavailable, match="read from it before"):
        files().plan(end, context)


def test_an_empty_folder_has_nothing_new(context: SourceContext, landing: Path) -> None:
    planned = files().plan(None, context)
    assert (planned.is_empty, planned.end, planned.has_more) == (True, None, False)


def test_another_folder_under_the_same_name_is_refused(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json"])
    end = files().plan(None, context).end
    with pytest.raises(Invalid) as caught:
        files("*/*.json").plan(end, context)
    assert caught.value.reason == "FOLDER_CHANGED"
    assert "moved_from='landing'" in caught.value.help


@pytest.mark.parametrize("folder", ["landing", "landing/"])
def test_a_folder_may_be_renamed_if_that_is_said(context: SourceContext, landing: Path, folder: str) -> None:
    put(landing, ["a.json", "b.json"])
    end = files().plan(None, context).end
    landing.rename(landing.parent / "archive")
    put(landing.parent / "archive", ["c.json"])
    moved = Files("archive/*.json", schema="id long", moved_from=folder)
    planned = moved.plan(end, context)
    assert [file["name"] for file in planned.splits["files"]] == ["c.json"], "what was read is not read again"
    assert planned.splits["folder"] == "archive"
    after = Files("archive/*.json", schema="id long").plan(planned.end, context)
    assert after.is_empty, "once a checkpoint has read from there, nothing needs to be said"


def test_a_folder_that_files_were_moved_from_is_a_folder() -> None:
    assert Files("a/*.json", schema="id long", moved_from=" ").problems() == [
        "moved_from is ' '; it must be the former folder of these files"
    ]


@pytest.mark.parametrize("position", [{}, {"offset": 3}, {"folder": "landing", "after": "a"}])
def test_a_foreign_position_is_refused(context: SourceContext, landing: Path, position: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        files().plan(position, context)
    assert caught.value.reason == "FOREIGN_POSITION"


def test_young_files_wait_if_asked_to(context: SourceContext, landing: Path) -> None:
    put(landing, ["a.json", "b.json", "c.json"])
    for name, age in (("a.json", 100), ("b.json", 5), ("c.json", 100)):
        os.utime(landing / name, (1_000_000 - age, 1_000_000 - age))
    with seams.installed(seams.Seams(now=lambda: datetime.fromtimestamp(1_000_000, UTC))):
        assert names(files(min_age=60, order="name").plan(None, context)) == ["a.json"]
        planned = files(min_age=60, order="arrival").plan(None, context)
        assert (names(planned), planned.has_more) == (["a.json", "c.json"], True), "the young one waits"
        assert len(names(files().plan(None, context))) == 3


def test_a_file_deleted_while_planning_is_not_planned(
    context: SourceContext, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.connectors.files.folder import _LocalFolder

    put(landing, ["b.json"])
    monkeypatch.setattr(_LocalFolder, "names", lambda *_: ["a.json", "b.json"])
    planned = files().plan(None, context)
    assert names(planned) == ["b.json"]
    assert not planned.has_more


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all", b"PAR1" + b"x" * 100])
def test_what_is_no_complete_parquet_file_is_named(context: SourceContext, landing: Path, data: bytes) -> None:
    (landing / "a.parquet").write_bytes(data)
    with pytest.raises(Invalid, match=r"'a\.parquet'") as caught:
        files("landing/*.parquet").plan(None, context)
    assert caught.value.reason == "NOT_PARQUET"


def test_an_unreadable_file_is_an_outage_that_names_it(
    context: SourceContext, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidegate.connectors.files.folder import _LocalFolder

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    put(landing, ["a.json"])
    monkeypatch.setattr(_LocalFolder, "open", fail)
    with pytest.raises(TidegateError, match=r"a\.json"):
        files().plan(None, context)


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An object store, played by a folder."""
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    folder = tmp_path / "bucket"
    folder.mkdir()
    monkeypatch.setattr(
        "tidegate.connectors.files.folder.file_system",
        lambda location: SubTreeFileSystem(str(folder / location.url.removeprefix("s3://b/")), LocalFileSystem()),
    )
    return folder


def test_objects_are_found_and_checked_like_files(blobs: MemoryBlobs, bucket: Path) -> None:
    context = SourceContext("shop", "orders", Place("s3://b"), blobs)
    put(bucket / "landing", ["a.json", "x/b c%.json", "_hidden/c.json", ".d.json", "e.json.tmp", "f.txt"], "12345")
    plans, end = drain(files("landing/**/*.json", max_bytes=6), context)
    assert [names(plan) for plan in plans] == [["a.json"], ["x/b c%.json"]]
    assert drain(files("landing/**/*.json"), context, end) == ([], end)
    assert names(files("landing/*/*.json").plan(None, context)) == ["x/b c%.json"]
    assert files("nothing/*.json").plan(None, context).is_empty
    source = files("landing/**/*.json")
    splits = source.plan(None, context).splits
    source.verify(splits, context)
    (bucket / "landing/a.json").unlink()
    put(bucket / "landing/x", ["b c%.json"], "54321")
    with pytest.raises(Invalid, match=r"(?s)'a\.json' was deleted.*'x/b c%\.json' was rewritten"):
        source.verify(splits, context)
