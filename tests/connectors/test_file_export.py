"""FileExport: folders of plain files, whole checkpoints only, whoever is killed or asleep."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.kit.sampling import in_turn
from tidegate import seams
from tidegate.connectors.files.export_folder import ExportFolder
from tidegate.connectors.sink import Head, Publication, SinkContext, Staging
from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.sinks import FileExport

pytestmark = in_turn(seconds=30)


class Export:
    """A folder, and a pipeline's sink that exports to it."""

    def __init__(self, folder: Path, spark: Any, **declared: Any) -> None:
        self.folder, self.spark = folder / "out", spark
        self.sink = FileExport("out", **declared)
        self.context = SinkContext("p", "u", "s", Place(str(folder)), home=f"{folder}/home")

    def frame(self, *keys: int) -> Any:
        return self.spark.range(1).selectExpr(
            f"explode(array({', '.join(map(str, keys))})) AS k",
            """'a "quoted", text' AS v""",
            "cast(null AS string) AS nothing",
        )

    def stage(self, id: int, *keys: int, attempt: str = "a") -> Json:
        committable = self.sink.prepare(self.frame(*keys), self.context, Staging(id, attempt)).committable
        assert committable is not None
        return committable

    def publish(self, id: int, *batches: Json, head: Head | None = None) -> PublishedTable | None:
        head = head or self.sink.head(self.context)
        return self.sink.publish(Publication(id, 0, seams.new_id(), head.last_entry, batches), head, self.context)

    def manifests(self) -> list[Json]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("_manifests/*.json"))]

    def files(self) -> list[str]:
        """What a tool finds that lists the folder, as such tools do: names that begin with _ or . are none."""
        found = (path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file())
        return sorted(str(path) for path in found if not any(part[0] in "_." for part in path.parts))

    def keys(self) -> list[int]:
        return sorted(key for name in self.files() for key in pq.read_table(self.folder / name)["k"].to_pylist())


@pytest.fixture
def export(tmp_path: Path, spark: Any) -> Export:
    return Export(tmp_path, spark)


def test_each_checkpoint_has_a_folder_and_a_manifest(export):
    export.sink.check(export.context)
    first = export.stage(1, 1, 2)
    assert not export.folder.exists(), "nothing is there before the decision"
    export.publish(1, first)
    export.publish(7, export.stage(7, 3))
    assert export.keys() == [1, 2, 3]
    assert [(each["checkpoint"], each["after"], each["rows"]) for each in export.manifests()] == [
        (1, None, 2),
        (7, 1, 1),
    ]
    assert sorted(name for each in export.manifests() for name in each["files"]) == export.files()
    assert json.loads((export.folder / "_latest.json").read_text()) == export.manifests()[-1]
    export.sink.retire(export.context, Staging(1, "a"))
    assert export.keys() == [1, 2, 3], "the folder has its own copy"


@pytest.mark.parametrize(("call", "number"), [("link", errno.EROFS), ("rename", errno.ENOSPC)])
def test_a_folder_that_refuses_to_write_is_named_itself_and_tried_again(export, monkeypatch, call, number):
    """Whoever runs the tests as root may write everywhere, so the system's answer is given here."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    batch = export.stage(1, 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(Unavailable) as refused:
            export.publish(1, batch)
    assert refused.value.reason == "STORAGE"
    assert str(export.folder) in refused.value.what
    assert "root" not in refused.value.help, "that is the setting of the ledger's folder"
    export.publish(1, batch)
    assert export.keys() == [1]


def test_csv_is_what_every_tool_reads(tmp_path, spark):
    export = Export(tmp_path, spark, format="csv", options={"sep": ";"})
    export.publish(1, export.stage(1, 1))
    with (export.folder / export.files()[0]).open(newline="") as file:
        assert list(csv.reader(file, delimiter=";")) == [["k", "v", "nothing"], ["1", 'a "quoted", text', ""]]


def test_json_lines_have_all_columns_and_may_be_compressed(tmp_path, spark):
    export = Export(tmp_path, spark, format="json", compression="gzip")
    export.publish(1, export.stage(1, 1))
    with gzip.open(export.folder / export.files()[0]) as file:
        assert json.loads(file.read()) == {"k": 1, "v": 'a "quoted", text', "nothing": None}


def test_partition_columns_become_folders(tmp_path, spark):
    export = Export(tmp_path, spark, format="csv", partition_by=["k"])
    export.publish(1, export.stage(1, 1, 2))
    assert [name.rsplit("/", 1)[0] for name in export.files()] == ["checkpoint=00000001/k=1", "checkpoint=00000001/k=2"]
    assert "k" not in (export.folder / export.files()[0]).read_text().splitlines()[0].split(",")


def test_a_publisher_that_dies_after_the_commit_is_finished_by_the_next(export, monkeypatch):
    export.publish(1, export.stage(1, 1))
    batch = export.stage(2, 2)

    class Crash(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(ExportFolder, "finish", die)
        with pytest.raises(Crash):
            export.publish(2, batch)
    assert export.keys() == [1], "nothing of it shows yet"
    assert export.sink.head(export.context).last_entry == 1, "so it is not said to be published"
    assert export.publish(2, batch) is not None
    assert export.keys() == [1, 2]
    assert export.sink.head(export.context).last_entry == 2


def test_a_rollback_finishes_what_was_committed_and_fences_the_rest(export, monkeypatch):
    export.publish(1, export.stage(1, 1))
    head, late = export.sink.head(export.context), export.stage(2, 2)
    assert "not removed" in export.sink.restore_plan(1, None, (), export.context).rows_stay_reason
    assert export.sink.restore(Publication(3, 1, "m", 1, ()), head, export.context) is not None
    assert export.publish(2, late, head=head) is None
    assert export.keys() == [1]
    assert export.manifests()[-1]["files"] == []


def test_publishers_at_once_export_once(export):
    batch = export.stage(1, *range(20))
    head, start, done = export.sink.head(export.context), threading.Barrier(6), []

    def publish() -> None:
        start.wait()
        done.append(export.publish(1, batch, head=head))

    threads = [threading.Thread(target=publish) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 6
    assert export.keys() == list(range(20))
    assert len(export.manifests()) == 1
    assert not list(export.folder.glob("_incoming/*"))


def test_a_publisher_that_sleeps_in_the_middle_of_moving_files_changes_nothing_when_it_wakes(export, monkeypatch):
    batch, place = export.stage(1, 1, 2), ExportFolder._place_locally

    def slowly(folder: ExportFolder, *given: Any) -> None:
        monkeypatch.setattr(ExportFolder, "_place_locally", place)
        assert export.publish(1, batch) is not None  # another one, which finishes
        export.publish(2, export.stage(2, 3))
        place(folder, *given)

    monkeypatch.setattr(ExportFolder, "_place_locally", slowly)
    export.publish(1, batch)
    assert export.keys() == [1, 2, 3]
    assert [each["checkpoint"] for each in export.manifests()] == [1, 2]


ROUNDS = int(os.environ.get("ROUNDS", "12"))


def test_killed_publishers_never_leave_half_a_checkpoint(export):
    """kill -9 after a random number of the calls that change the disk, then another publisher."""
    batches = {id: export.stage(id, *range(10 * id, 10 * id + 10)) for id in range(1, ROUNDS + 1)}
    kills = 0
    for id, batch in batches.items():
        for steps in range(id % 5, 40, 7):
            child = os.fork()
            if child == 0:
                _kill_after(steps)
                export.publish(id, batch)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            kills += os.WIFSIGNALED(status)
            assert export.keys() in (list(range(10, 10 * id)), list(range(10, 10 * id + 10)))
        while export.sink.head(export.context).last_entry != id:
            export.publish(id, batch)
    assert kills >= ROUNDS
    assert export.keys() == list(range(10, 10 * ROUNDS + 10))
    assert sum(each["rows"] for each in export.manifests()) == 10 * ROUNDS


def _kill_after(steps: int) -> None:
    """Kill this process in the midst of its work: before its nth call that changes a folder or makes a file last."""
    remaining = iter(range(steps))

    def counted(call: Any) -> Any:
        def wrapper(*given: Any, **named: Any) -> Any:
            if next(remaining, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return wrapper

    for name in ("rename", "replace", "link", "fsync", "unlink", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))


def test_files_that_are_gone_before_they_were_exported_are_told(export):
    batch = export.stage(1, 1)
    export.sink.discard(export.context, Staging(1, "a"))
    with pytest.raises(Corrupt, match="that checkpoint 1 staged are gone"):
        export.publish(1, batch)
    assert not export.folder.exists()


def test_a_folder_of_another_pipeline_is_refused(export):
    export.publish(1, export.stage(1, 1))
    other = SinkContext("q", "w", "s", export.context.place, home=export.context.home)
    for look in (export.sink.check, export.sink.head):
        with pytest.raises(Invalid, match="has the export of tidegate/u/s"):
            look(other)
    taking_over = FileExport("out", take_over=True)
    assert taking_over.head(other) == Head(None, None)


def test_a_pipeline_that_takes_over_exports_beside_what_is_there(export, monkeypatch):
    """Its numbers begin at 1 again: rows of a number that was there before would be taken for exported."""
    for id in (1, 2):
        export.publish(id, export.stage(id, id))
    export.context = SinkContext("p", "fresh", "s", export.context.place, home=f"{export.context.home}-fresh")
    export.sink = FileExport("out", take_over=True)
    for id in (1, 2, 3):
        assert export.publish(id, export.stage(id, 10 * id)) is not None
    assert export.keys() == [1, 2, 10, 20, 30]
    assert sorted(name for each in export.manifests() for name in each["files"]) == export.files()
    assert sorted({name.split("/")[0] for name in export.files()}) == [
        "checkpoint=00000001",
        "checkpoint=00000001-3",
        "checkpoint=00000002",
        "checkpoint=00000002-4",
        "checkpoint=00000003",
    ]


def test_what_another_pipeline_left_unfinished_holds_nobody_up_who_takes_over(export, monkeypatch):
    batch = export.stage(1, 1)
    with monkeypatch.context() as patched:
        patched.setattr(ExportFolder, "finish", lambda *_: None)
        export.publish(1, batch)
    export.sink.discard(export.context, Staging(1, "a"))
    export.context = SinkContext("p", "fresh", "s", export.context.place, home=f"{export.context.home}-fresh")
    export.sink = FileExport("out", take_over=True)
    assert export.publish(1, export.stage(1, 10)) is not None
    assert export.keys() == [10]
    assert export.sink.head(export.context).last_entry == 1


def test_csv_keeps_every_text_as_it_is(tmp_path, spark):
    texts = [
        "  before",
        "after  ",
        " ",
        "\t",
        "a\nb",
        "a\r\nb",
        'q"q',
        '"',
        "",
        "\\",
        "a\\",
        "#c",
        ",",
        "NULL",
        "ä\u2028x",
    ]
    export = Export(tmp_path, spark, format="csv")
    rows = spark.createDataFrame(list(enumerate(texts)), "k int, v string")
    export.publish(1, export.sink.prepare(rows, export.context, Staging(1, "a")).committable)
    found = {}
    for name in export.files():
        with (export.folder / name).open(newline="") as file:
            found |= {int(row[0]): row[1] for row in list(csv.reader(file))[1:]}
    assert [found[number] for number in range(len(texts))] == texts


def lines_of(export: Export, rows: Any) -> list[str]:
    export.publish(1, export.sink.prepare(rows.coalesce(1), export.context, Staging(1, "a")).committable or {})
    return (export.folder / export.files()[0]).read_text().splitlines()


@pytest.mark.parametrize(
    ("values", "options", "lines"),
    [
        ("(1), (NULL)", {}, ["1", '""']),  # a number is never empty
        ("('a'), (''), (NULL)", {"nullValue": "NULL"}, ["a", '""', "NULL"]),
        ("('a'), ('')", {}, ["a", '""']),
    ],
)
def test_a_null_alone_in_a_line_of_csv_is_a_row(tmp_path, spark, values, options, lines):
    export = Export(tmp_path, spark, format="csv", header=False, options=options)
    assert lines_of(export, spark.sql(f"SELECT * FROM VALUES {values} AS t(v)")) == lines


def test_a_null_that_would_be_taken_for_empty_text_is_refused_before_the_decision(tmp_path, spark):
    export = Export(tmp_path, spark, format="csv", header=False)
    with pytest.raises(Invalid, match="column 'v' is null, .* the same as empty text .*nullValue") as refused:
        lines_of(export, spark.sql("SELECT * FROM VALUES ('a'), (NULL) AS t(v)"))
    assert refused.value.reason == "BAD_ROWS"


MOMENTS = (
    "2024-03-31 01:59:59.000001",
    "2024-01-01 00:00:00.999999",
    "1969-12-31 23:59:59.999999",
    "1883-11-18 12:03:57.123456",  # zones had seconds then
    "0001-01-01 00:00:00.000001",
    "9999-12-31 23:59:59.999999",
    "+10000-01-01 00:00:00.000001",
    "-0044-03-15 12:00:00.000001",
)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_moments_come_back_to_the_microsecond(tmp_path, spark, format, zone):
    """Whatever the session's zone is, and however deep they are."""
    export = Export(tmp_path, spark, format=format)
    values = ", ".join(f"({number}, '{moment}')" for number, moment in enumerate(MOMENTS))
    columns = ["n", "cast(text || 'Z' AS timestamp) AS zoned", "cast(text AS timestamp_ntz) AS local"]
    columns += [] if format == "csv" else ["named_struct('in', array(cast(text || 'Z' AS timestamp))) AS deep"]
    rows = spark.sql(f"SELECT * FROM VALUES {values} AS t(n, text)").selectExpr(*columns)
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        export.publish(1, export.sink.prepare(rows, export.context, Staging(1, "a")).committable)
        reader = spark.read.schema(rows.schema).format(format).option("header", "true")
        read = reader.load(str(export.folder / "checkpoint=00000001"))
        assert read.exceptAll(rows).count() == rows.exceptAll(read).count() == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_what_others_may_not_read_is_no_export(export):
    """The files have the modes that this user's files have, whatever modes the ledger uses for its own."""
    umask = os.umask(0o022)
    try:
        export.publish(1, export.stage(1, 1))
    finally:
        os.umask(umask)
    for path in (export.folder, *export.folder.rglob("*")):
        if path.parent.name != "_tidegate":
            assert path.stat().st_mode & 0o044 == 0o044, path


@pytest.mark.parametrize(
    ("declared", "column", "why"),
    [
        ({"format": "csv"}, "array(1) AS tags", "'tags' is array, which CSV does not support"),
        ({"partition_by": ["where"]}, "1 AS x", "partition column 'where' is not in the output"),
        ({"partition_by": ["x"]}, "cast(1 AS double) AS x", "partition column 'x' is double"),
        (
            {"format": "json", "partition_by": ["tidegate_line"]},
            "1 AS tidegate_line",
            "a name that the sink reserves",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_anything_is_staged(tmp_path, spark, declared, column, why):
    export = Export(tmp_path, spark, **declared)
    with pytest.raises(Invalid) as refused:
        export.sink.prepare(export.frame(1).selectExpr("*", column), export.context, Staging(1, "a"))
    assert why in refused.value.what
    assert export.sink.attempts(1, export.context) == []


def test_all_problems_of_a_declaration_are_told():
    sink = FileExport("", format="xml", compression="zip", header="yes", options={"sep": 1})  # type: ignore[arg-type,dict-item]
    assert len(sink.problems()) == 5
    assert FileExport("out", compression="gzip").problems() != []
