"""One interval's rows in a Delta table, without Spark: who is replaced, and what others may have done meanwhile."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.delta import KV, by_foreigner, kv, schema
from tests.kit.sinks import Published
from tidegate.connectors.delta.sink.table import StagedBatch, staged_result
from tidegate.connectors.sink import Head, Publication, Staging
from tidegate.delta import open_table
from tidegate.delta.log import snapshot as snapshots
from tidegate.delta.log.files import read_commit
from tidegate.errors import Corrupt, Invalid, Rejected
from tidegate.records.interval import Interval
from tidegate.sinks import DeltaAppend, DeltaUpsert

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def hour(number):
    return Interval.between(DAY + timedelta(hours=number), DAY + timedelta(hours=number + 1))


class Hours(Published):
    """A sink of an interval pipeline, and what its coordinator would remember."""

    def __init__(self, folder, sink=None):
        super().__init__(folder, sink)
        self.context = replace(self.context, by_interval=True)
        self.shown = {}

    def publication(self, id, number, *rows):
        folder = Staging(id, f"attempt{id}", hour(number)).data_folder(self.context)
        files = self.files(folder, kv(*rows)) if rows else []
        snapshot = open_table(self.location)
        batch = StagedBatch(columns=KV, files=files, since=snapshot.version if snapshot else None)
        committable = staged_result(batch, len(rows)).committable
        return Publication(id, 0, f"publisher-{id}", None, (committable,), hour(number), self.shown.get(number))

    def take(self, publication, number, head=None):
        head = head or self.head()
        done = self.sink.publish(replace(publication, previous=head.last_entry), head, self.context)
        if done is not None:
            self.shown[number] = publication.id, self.sink.trace(publication.committables)
        return done

    def hour(self, id, number, *rows):
        done = self.take(self.publication(id, number, *rows), number)
        assert done is not None
        return done

    def holds(self, publication):
        return self.sink.has_publication(publication, self.head(), self.context)


@pytest.fixture
def world(tmp_path):
    return Hours(tmp_path)


def test_an_hour_is_replaced_in_one_commit_and_nothing_else(world):
    world.hour(1, 0, (1, "a"))
    world.hour(2, 1, (2, "b"), (3, "b"))
    by_foreigner(world.location, (9, "z"))
    done = world.hour(3, 1, (4, "c"))
    assert world.rows() == [(1, "a"), (4, "c"), (9, "z")]
    assert done.version == 3
    assert world.hour(4, 1).version == 4
    assert world.rows() == [(1, "a"), (9, "z")]


def test_ids_come_in_any_order_and_the_transaction_never_goes_back(world):
    late = world.publication(3, 1, (3, "late"))
    world.hour(7, 0, (7, "first"))
    world.take(late, 1)
    assert world.rows() == [(3, "late"), (7, "first")]
    assert world.head() == Head(version=1, last_entry=7)
    assert world.sink.locate(3, world.context).version == 1
    assert world.sink.locate(7, world.context).version == 0
    assert world.sink.locate(5, world.context) is None


def test_the_table_tells_what_was_published_also_after_it_was_replaced_or_compacted(world):
    first = world.publication(1, 0, (1, "a"))
    assert not world.holds(first)
    world.take(first, 0)
    other = world.publication(2, 1, (2, "b"))
    assert world.holds(first)
    assert not world.holds(other)
    world.hour(3, 0, (3, "c"))
    DeltaTable(world.location.url).optimize.compact()
    assert world.holds(first)
    assert not world.holds(other)


def test_each_commit_is_read_once_however_many_intervals_are_asked_for(world, monkeypatch):
    """An interval that is open holds back the log's end, so all those after it are asked for at each publication."""
    published = [world.publication(id, id) for id in range(1, 21)]
    reads = []
    monkeypatch.setattr(snapshots, "read_commit", lambda *asked: reads.append(asked[1]) or read_commit(*asked))
    for number, publication in enumerate(published):
        head = world.head()
        assert [world.sink.has_publication(each, head, world.context) for each in published[:number]] == [True] * number
        assert world.take(publication, publication.id, head) is not None
    assert len(reads) <= 5 * len(published), "190 questions, each about all commits since its rows were staged"


def test_what_was_seen_in_one_table_is_not_believed_of_another_in_its_place(world):
    first = world.publication(1, 0, (1, "a"))
    world.take(first, 0)
    world.hour(2, 1, (2, "b"))
    assert world.holds(first)
    shutil.rmtree(world.location.url)
    world.shown.clear()
    for id in range(3, 7):
        world.hour(id, id, (id, "z"))
    assert not world.holds(first)


def test_if_the_log_does_not_tell_any_more_nobody_guesses(world):
    first = world.publication(1, 0, (1, "a"))
    second = world.publication(2, 1, (2, "b"))
    world.take(first, 0)
    world.hour(3, 2, (3, "c"))
    DeltaTable(world.location.url).create_checkpoint()
    world.location.local("_delta_log/00000000000000000000.json").unlink()
    with pytest.raises(Corrupt, match="it is unknown whether .* has checkpoint 2: commit 0 is missing"):
        world.holds(second)
    assert world.sink.locate(1, world.context) is None, "and readers get no hint"


def test_who_saw_an_older_version_loses(world):
    world.hour(1, 0, (1, "a"))
    old, late = world.head(), world.publication(2, 1, (2, "late"))
    world.hour(3, 1)
    assert world.take(late, 1, head=old) is None
    assert world.rows() == [(1, "a")]


def test_rows_that_others_have_rewritten_are_not_guessed_at(world):
    world.hour(1, 0, (1, "a"))
    world.hour(2, 1, (2, "b"))
    DeltaTable(world.location.url).delete("k = 2")
    world.hour(3, 0, (3, "c"))
    with pytest.raises(Invalid, match=r"of the 1 files that checkpoint 2 added .*, 0 remain; version 2 \(DELETE\)"):
        world.hour(4, 1, (4, "d"))
    with pytest.raises(Invalid, match="interval_column"):
        world.sink.check_interval(hour(1), world.shown[1], world.context)
    world.sink.check_interval(hour(0), world.shown[0], world.context)


def test_what_was_staged_before_others_rewrote_its_rows_is_published_once_the_table_is_put_back(world):
    world.hour(1, 0, (1, "a"))
    world.hour(2, 1, (2, "b"))
    again = world.publication(3, 1, (4, "d"))
    DeltaTable(world.location.url).optimize.compact()
    with pytest.raises(Invalid, match="cannot be identified by file") as caught:
        world.take(again, 1)
    assert caught.value.reason == "INTERVAL_REWRITTEN"
    DeltaTable(world.location.url).restore(1)
    assert world.take(again, 1) is not None
    assert world.rows() == [(1, "a"), (4, "d")]
    world.hour(4, 2, (5, "e"))
    assert world.rows() == [(1, "a"), (4, "d"), (5, "e")]


def test_files_of_an_interval_that_nobody_remembers_are_not_thrown_away(world):
    world.hour(1, 0, (1, "a"))
    world.shown.clear()
    with pytest.raises(Invalid, match="of the 0 files that this pipeline added .*, 1 remain"):
        world.hour(2, 0, (2, "b"))


def test_an_append_only_table_is_refused(tmp_path):
    Published(tmp_path, DeltaAppend("t", properties={"delta.appendOnly": "true"})).checkpoint(1)
    with pytest.raises(Invalid, match="appendOnly"):
        Hours(tmp_path).sink.check(Hours(tmp_path).context)
    assert DeltaAppend("t", properties={"delta.appendOnly": "true"}).interval_problems()


def test_a_table_whose_files_delta_rs_may_not_remove_is_refused(tmp_path):
    Published(tmp_path, DeltaAppend("t", properties={"delta.enableChangeDataFeed": "true"})).checkpoint(1)
    with pytest.raises(Invalid, match="change data feed") as error:
        Hours(tmp_path).sink.check(Hours(tmp_path).context)
    assert error.value.reason == "NEEDS_SPARK"


# -- upserts, whose keys have the interval in them -----------------------------------------------------------


class Keyed(Hours):
    """An upsert by number and time."""

    def __init__(self, folder):
        super().__init__(folder, DeltaUpsert("t", keys=["k", "at"], interval_column="at"))

    def publication(self, id, number, *ks):
        folder = Staging(id, f"attempt{id}", hour(number)).data_folder(self.context)
        rows = table([(k, hour(number).start + timedelta(minutes=k)) for k in ks])
        snapshot = open_table(self.location)
        since = snapshot.version if snapshot else None
        batch = StagedBatch(columns=TIMED, files=self.files(folder, rows, TIMED) if ks else [], since=since)
        committable = staged_result(batch, len(ks)).committable
        return Publication(id, 0, f"publisher-{id}", None, (committable,), hour(number), self.shown.get(number))

    def ks(self):
        rows = DeltaTable(self.location.url).to_pyarrow_table().to_pylist()
        return sorted((int((row["at"] - DAY) / timedelta(hours=1)), row["k"]) for row in rows)


TIMED = schema(k="long", at="timestamp")


def table(rows):
    return pa.Table.from_pylist(
        [{"k": k, "at": at} for k, at in rows], pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    )


def test_an_upsert_is_refused_if_a_key_may_be_of_several_intervals():
    problems = DeltaUpsert("t", keys="k").interval_problems()
    assert any("order in which the intervals run" in problem for problem in problems)
    assert any("is not one of keys" in found for found in DeltaUpsert("t", keys="k", interval_column="at").problems())
    assert DeltaUpsert("t", keys=["k", "at"], interval_column="at").interval_problems() == []


def test_an_upserted_hour_takes_the_place_of_all_rows_of_its_time_in_one_commit(tmp_path):
    world = Keyed(tmp_path)
    world.hour(1, 1, 1, 2)
    world.hour(2, 0, 3)
    write_deltalake(world.location.url, table([(8, DAY), (9, DAY + timedelta(hours=1))]), mode="append")
    DeltaTable(world.location.url).optimize.compact()
    again = world.publication(3, 1, 2, 4)
    done = world.take(again, 1)
    assert world.ks() == [(0, 3), (0, 8), (1, 2), (1, 4)], "hour 0 is as it was, with a stranger's row"
    assert done.version == 4
    assert world.holds(again)
    world.hour(4, 1)
    assert world.ks() == [(0, 3), (0, 8)]
    with pytest.raises(Rejected, match="need not be disowned"):
        disown(world, 1, take_out=True)


def test_a_publisher_of_an_upserted_hour_that_comes_too_late_leaves_nothing(tmp_path):
    world = Keyed(tmp_path)
    world.hour(1, 0, 1)
    world.hour(2, 1, 1)
    DeltaTable(world.location.url).optimize.compact()
    old, late = world.head(), world.publication(3, 1, 5)
    world.hour(4, 1, 6)
    assert world.take(late, 1, head=old) is None
    assert world.ks() == [(0, 1), (1, 6)]
    assert not list(world.location.local("tidegate").rglob("00000003/merged-*"))
    world.sink.retire(world.context, Staging(2, "attempt2", hour(1)))
    world.sink.retire(world.context, Staging(4, "attempt4", hour(1)))
    assert world.ks() == [(0, 1), (1, 6)], "what an hour has staged is all in use"


# -- the way out: rows that are found by their values, or let go of ------------------------------------------


def disown(world, number, **options):
    return world.sink.disown(hour(number), world.shown.get(number), world.head(), world.context, **options)


def compacted(world):
    """Two hours with rows that are alike, and a stranger's; then all are in one file."""
    world.hour(1, 0, (1, "a"), (7, "same"))
    world.hour(2, 1, (2, "b"), (7, "same"), (7, "same"))
    by_foreigner(world.location, (9, "z"))
    DeltaTable(world.location.url).optimize.compact()


def test_rows_that_others_have_compacted_are_taken_out_by_their_values(world):
    compacted(world)
    waiting = world.publication(3, 1, (4, "d"))
    looked = disown(world, 1, take_out=True, dry_run=True)
    assert (looked.version, looked.rows, world.head().version) == (None, 3, 3)
    done = disown(world, 1, take_out=True)
    assert (done.version, done.rows) == (4, 3)
    assert world.rows() == [(1, "a"), (7, "same"), (9, "z")]
    world.sink.check_interval(hour(1), world.shown[1], world.context)
    world.take(waiting, 1)
    assert world.rows() == [(1, "a"), (4, "d"), (7, "same"), (9, "z")]
    with pytest.raises(Invalid) as caught:
        world.hour(4, 0, (5, "e"))
    assert caught.value.reason == "INTERVAL_REWRITTEN", "the other hour's rows are where they were"
    assert disown(world, 0, take_out=True).rows == 2, "also behind the first one's going"
    world.hour(5, 0, (5, "e"))
    assert world.rows() == [(4, "d"), (5, "e"), (9, "z")]


def test_what_is_let_go_of_stays_and_what_comes_next_is_added(world):
    compacted(world)
    assert disown(world, 1, take_out=False).rows == 0
    world.hour(3, 1, (4, "d"))
    assert world.rows() == [(1, "a"), (2, "b"), (4, "d"), (7, "same"), (7, "same"), (7, "same"), (9, "z")]
    world.hour(4, 1)
    assert (4, "d") not in world.rows(), "from there on it is replaced as ever"


def test_files_of_the_interval_that_are_left_go_with_it(world):
    folder = Staging(1, "attempt1", hour(0)).data_folder(world.context)
    world.files(folder, kv((1, "a")))
    files = world.files(folder, kv((2, "b")))  # with the first one
    batch = staged_result(StagedBatch(columns=KV, files=files, since=None), 2).committable
    world.take(Publication(1, 0, "publisher-1", None, (batch,), hour(0), None), 0)
    DeltaTable(world.location.url).delete("k = 1")
    with pytest.raises(Invalid, match=r"version 1 \(DELETE\) has changed") as caught:
        disown(world, 0, take_out=True)
    assert caught.value.reason == "INTERVAL_CHANGED"
    assert "--leave" in caught.value.help
    assert world.rows() == [(2, "b")]
    disown(world, 0, take_out=False)
    assert world.rows() == []
    world.hour(2, 0, (3, "c"))
    assert world.rows() == [(3, "c")]


def test_rows_whose_old_files_are_gone_are_not_guessed_at(world):
    compacted(world)
    for path in world.location.local("tidegate").rglob("*/00000002/*/*/*.parquet"):
        path.unlink()
    with pytest.raises(Invalid, match="VACUUM") as caught:
        disown(world, 1, take_out=True)
    assert caught.value.reason == "INTERVAL_CHANGED"
    assert world.head().version == 3


def test_an_interval_that_is_as_it_was_published_is_not_let_go_of(world):
    world.hour(1, 0, (1, "a"))
    for take_out in (True, False):
        with pytest.raises(Rejected, match="as they were published"):
            disown(world, 0, take_out=take_out)
        with pytest.raises(Rejected):
            disown(world, 5, take_out=take_out)


def test_who_lets_go_of_rows_of_an_older_version_of_the_table_does_it_again(world):
    compacted(world)
    old = world.head()
    by_foreigner(world.location, (8, "y"))
    assert world.sink.disown(hour(1), world.shown[1], old, world.context, take_out=True) is None
    assert disown(world, 1, take_out=True).rows == 3
    assert world.rows() == [(1, "a"), (7, "same"), (8, "y"), (9, "z")]
