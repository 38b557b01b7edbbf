"""What every exactly-once sink promises, asked of each of ours with real Spark.

A new sink joins by one more `Case`: how it is declared, and how to see what is in its target.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tidegate import seams
from tidegate.delta import Location, open_table, read_table
from tidegate.errors import Corrupt, Invalid
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable
from tidegate.sinks import DeltaAppend, DeltaUpsert
from tidegate.sinks.base import Publication, Sink, SinkContext, Staging

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """A sink and how to look at what it shows to readers."""

    make: Callable[..., Sink]
    rows: Callable[[str], list[Row]]
    by_foreigner: Callable[[str, Any], None]


def delta_rows(target: str) -> list[Row]:
    table = open_table(Location(target))
    return [] if table is None else sorted((row["k"], row["v"]) for row in read_table(table).to_pylist())


def delta_by_foreigner(target: str, frame: Any) -> None:
    from deltalake import write_deltalake

    write_deltalake(target, frame.toArrow(), mode="append")


def delta(make: Callable[..., Sink]) -> Case:
    return Case(make, delta_rows, delta_by_foreigner)


CASES = {
    "append": delta(DeltaAppend),
    "append-partitioned": delta(lambda path: DeltaAppend(path, partition_by=["p"])),
    "upsert": delta(lambda path: DeltaUpsert(path, keys=["k"])),
    "upsert-partitioned": delta(lambda path: DeltaUpsert(path, keys=["k"], order_by=["v"], partition_by=["p"])),
}


class World:
    """One target, and pipelines that publish to it."""

    def __init__(self, case: Case, folder: Path, spark: Any) -> None:
        self.case, self.folder, self.spark = case, folder, spark
        self.sink = case.make("target")
        self.context = self.of("p", "u")

    def of(self, pipeline: str, uid: str) -> SinkContext:
        return SinkContext(pipeline, uid, "s", Place(str(self.folder)))

    def frame(self, *keys: int, value: str = "x") -> Any:
        rows = ", ".join(f"({key}, '{value}', 'part {key % 2}')" for key in keys) or "(0, '', '')"
        frame = self.spark.sql(f"SELECT * FROM VALUES {rows} AS t(k, v, p)")
        return frame if keys else frame.where("false")

    def prepare(self, id: int, *keys: int, value: str = "x", attempt: str = "a", by: SinkContext | None = None) -> Json:
        prepared = self.sink.prepare(self.frame(*keys, value=value), by or self.context, Staging(id, attempt))
        assert prepared.rows == len(keys)
        assert prepared.committable is not None
        return prepared.committable

    def publish(
        self, id: int, *batches: Json, head: Any = None, attempt: str = "m", by: SinkContext | None = None
    ) -> PublishedTable | None:
        by = by or self.context
        head = head or self.sink.head(by)
        return self.sink.publish(Publication(id, 0, attempt, head.last, batches), head, by)

    @property
    def target(self) -> str:
        return self.sink.target(self.context.place)

    @property
    def rows(self) -> list[Row]:
        return self.case.rows(self.target)


@pytest.fixture(params=sorted(CASES))
def world(request: Any, tmp_path: Path, spark: Any) -> World:
    return World(CASES[request.param], tmp_path, spark)


def test_what_is_prepared_is_invisible_until_it_is_published(world):
    batch = world.prepare(1, 1, 2)
    assert world.rows == []
    assert world.sink.head(world.context).last is None
    assert world.publish(1, batch) is not None
    assert world.rows == [(1, "x"), (2, "x")]
    second = world.prepare(2, 3)
    assert world.rows == [(1, "x"), (2, "x")]
    assert world.publish(2, second) is not None
    assert world.rows == [(1, "x"), (2, "x"), (3, "x")]
    assert world.sink.head(world.context).last == 2
    assert not list(Path(world.target).rglob("*.crc")), "they double the files, and nobody syncs them"


def test_a_committable_is_plain_json(world):
    import json

    batch = world.prepare(1, 1)
    assert json.loads(json.dumps(batch)) == batch
    assert world.publish(1, json.loads(json.dumps(batch))) is not None


def test_publishing_twice_is_publishing_once(world):
    world.publish(1, world.prepare(1, 1))
    old, batch = world.sink.head(world.context), world.prepare(2, 2)
    world.publish(2, batch, head=old)
    assert world.publish(2, batch) is None
    assert world.publish(2, batch, head=old, attempt="another") is None
    assert world.rows == [(1, "x"), (2, "x")]


def test_concurrent_publishers_publish_once(world):
    world.publish(1, world.prepare(1, 1))
    head, batch = world.sink.head(world.context), world.prepare(2, 1, 2, value="y")
    start, found = threading.Barrier(4), []

    def go(number: int) -> None:
        start.wait()
        found.append(world.publish(2, batch, head=head, attempt=f"m{number}"))

    threads = [threading.Thread(target=go, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len([done for done in found if done is not None]) == 1
    assert world.sink.head(world.context).last == 2
    assert len(world.rows) == len(set(world.rows)) == (3 if isinstance(world.sink, DeltaAppend) else 2)


def test_an_id_never_goes_back(world):
    world.publish(5, world.prepare(5, 5))
    late = world.prepare(4, 4)
    assert world.publish(4, late) is None
    assert world.sink.head(world.context).last == 5
    assert world.rows == [(5, "x")]


def test_somebody_elses_commit_in_between_is_a_lost_race_then_a_success(world):
    world.publish(1, world.prepare(1, 1))
    head, batch = world.sink.head(world.context), world.prepare(2, 2)
    world.case.by_foreigner(world.target, world.frame(9, value="theirs"))
    assert world.publish(2, batch, head=head) is None
    assert world.rows == [(1, "x"), (9, "theirs")]
    assert world.publish(2, batch) is not None
    assert world.rows == [(1, "x"), (2, "x"), (9, "theirs")]


def test_a_discarded_attempt_takes_only_its_own_files(world):
    kept, lost = world.prepare(1, 1, attempt="kept"), world.prepare(1, 1, attempt="lost")
    other = world.of("p1", "u1")
    theirs = world.prepare(1, 7, attempt="lost", by=other)
    assert world.sink.attempts(1, world.context) == ["kept", "lost"]
    for _ in range(2):
        world.sink.discard(world.context, Staging(1, "lost"))
    assert world.sink.attempts(1, world.context) == ["kept"]
    with pytest.raises(Corrupt):
        world.publish(1, lost)
    assert world.publish(1, kept) is not None
    assert world.publish(1, theirs, by=other) is not None
    assert world.rows == [(1, "x"), (7, "x")]


def test_retiring_the_published_attempt_changes_nothing_for_readers(world):
    for id in (1, 2, 3):
        world.publish(id, world.prepare(id, id, id + 1, value=f"{id}"))
    before = world.rows
    for id in (1, 2):
        for _ in range(2):
            world.sink.retire(world.context, Staging(id, "a"))
    assert world.rows == before


def test_pipelines_whose_names_are_prefixes_do_not_see_each_other(world):
    longer = world.of("p1", "u1")
    world.publish(10, world.prepare(10, 10))
    assert world.sink.head(longer).last is None
    assert world.publish(1, world.prepare(1, 1, by=longer), by=longer) is not None
    assert world.sink.head(world.context).last == 10
    assert world.sink.head(longer).last == 1
    assert world.sink.attempts(1, world.context) == []
    assert world.rows == [(1, "x"), (10, "x")]


def test_a_pipeline_that_was_started_afresh_is_refused(world):
    world.publish(3, world.prepare(3, 3))
    fresh = world.of("p", "another uid")
    for look in (world.sink.check, world.sink.head):
        with pytest.raises(Invalid, match="another pipeline"):
            look(fresh)


def test_nothing_to_publish_is_nothing_after_the_target_exists(world):
    first = world.sink.prepare(world.frame(), world.context, Staging(1, "a"))
    assert first.rows == 0
    assert first.committable is not None  # the target is to be made
    assert world.publish(1, first.committable) is not None
    assert world.sink.prepare(world.frame(), world.context, Staging(2, "a")).committable is None
    assert world.rows == []


def test_what_was_published_is_found_again_and_verified(world):
    done = {id: world.publish(id, world.prepare(id, id)) for id in (1, 2)}
    for id, at in done.items():
        found = world.sink.locate(id, world.context)
        assert (found.uri, found.version, found.log_hash) == (at.uri, at.version, at.log_hash)
        world.sink.verify(at, world.context)
    assert world.sink.locate(3, world.context) is None


@pytest.mark.parametrize("point", ["S4.stage.before", "S4.stage.after"])
def test_a_crash_while_staging_shows_nothing_and_the_next_attempt_works(world, point):
    class Crash(BaseException):
        pass

    def stop(at: str) -> None:
        if at == point:
            raise Crash

    with seams.installed(seams.Seams(fault=stop)), pytest.raises(Crash):
        world.prepare(1, 1, attempt="dead")
    assert world.rows == []
    assert world.publish(1, world.prepare(1, 1, attempt="alive")) is not None
    assert world.rows == [(1, "x")]
    assert world.sink.attempts(1, world.context) == (["alive"] if point.endswith("before") else ["alive", "dead"])


@pytest.mark.parametrize("point", ["S10.publish.before", "S10.publish.after"])
def test_a_crash_while_publishing_shows_all_or_nothing_and_is_repaired(world, point):
    world.publish(1, world.prepare(1, 1))
    batch = world.prepare(2, 1, 2, value="y")

    class Crash(BaseException):
        pass

    def stop(at: str) -> None:
        if at == point:
            raise Crash

    with seams.installed(seams.Seams(fault=stop)), pytest.raises(Crash):
        world.publish(2, batch)
    landed = world.sink.head(world.context).last == 2
    assert landed is point.endswith("after")
    assert len(world.rows) == (1 if not landed else 3 if isinstance(world.sink, DeltaAppend) else 2)
    assert (world.publish(2, batch) is None) is landed
    assert world.rows == ([(1, "x")] if isinstance(world.sink, DeltaAppend) else []) + [(1, "y"), (2, "y")]


def test_an_output_that_does_not_fit_is_refused_before_anything_is_written(world):
    world.publish(1, world.prepare(1, 1))
    frame = world.frame(2).selectExpr("cast(k AS string) AS k", "v", "p", "1 AS extra")
    with pytest.raises(Invalid) as refused:
        world.sink.prepare(frame, world.context, Staging(2, "a"))
    assert "'k' is string; the table has int" in refused.value.what
    assert "'extra' (int) is not in the table" in refused.value.what
    assert world.sink.attempts(2, world.context) == []
