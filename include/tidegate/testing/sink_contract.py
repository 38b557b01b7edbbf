"""The contract of exactly-once sinks, as tests. A connector subclasses them and says where its target is."""

from __future__ import annotations

import functools
import inspect
import json
import threading
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import pytest

from tidegate import seams
from tidegate.connectors import sink as sink_contract
from tidegate.connectors import transactional
from tidegate.connectors.row_rules import is_broken
from tidegate.connectors.sink import Head, Prepared, Publication, Sink, SinkContext, Staging
from tidegate.errors import Corrupt, Invalid, TidegateError, Unavailable
from tidegate.pipeline import Pipeline
from tidegate.records.place import Place
from tidegate.records.records import Json, PublishedTable, Restored
from tidegate.testing.crashes import crash_at, crash_at_line, lines_reached, points_reached
from tidegate.testing.rows_source import TestSource
from tidegate.testing.running import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SinkContract"]

COLUMNS = "k int, v string, p string"
STAGING = ("S4.stage.before", "S4.stage.after")
PUBLISHING = ("S10.publish.before", "S10.publish.after")


WRONG = "n0t-the-pa55word"


def _files_of(sink: Sink) -> set[str]:
    """Return the files with the sink's code, without those of tidegate's base classes."""
    files = set()
    for cls in type(sink).__mro__:
        for method in vars(cls).values():
            if inspect.isfunction(method):
                files.add(method.__code__.co_filename)
    return files - {sink_contract.__file__, transactional.__file__}


class SinkContract:
    """Tests that every exactly-once sink must pass. Subclass it, and implement `sink` and `rows`.

        class TestMySink(SinkContract):
            def sink(self):
                return MySink(f"{self.folder}/target")

            def rows(self):
                return read_target(f"{self.folder}/target")

    The sink receives rows with the columns k (int, a key), v and p (text). Each test has its own folder, `self.folder`,
    which is also the setting `data`. The tests need a fixture `spark`, such as `tidegate.testing.local_spark`.
    """

    folder: Path
    spark: SparkSession
    unique_name: str
    """A name that no other test uses, for a table or a topic on a shared server."""

    secrets: ClassVar[Sequence[str]] = ()
    """Passwords and keys of the connection. The tests check that they are never shown."""

    crash_lines: ClassVar[int] = 40
    """Maximum number of lines of the sink's code at which a publisher is killed. Fewer are faster, but may miss one."""

    # -- to be implemented -------------------------------------------------------------------------------

    def sink(self) -> Sink:
        """Return a new sink. Each call stands for another process."""
        raise NotImplementedError

    def rows(self) -> list[tuple[int, str]]:
        """Return k and v of all rows that a reader of the target sees, in any order. The target may not exist yet."""
        raise NotImplementedError

    def place(self) -> Place:
        """Return where relative paths start, and the connections, if the sink needs any."""
        return Place(str(self.folder))

    def unfit(self, rows: DataFrame) -> DataFrame | None:
        """Return these rows in a form that does not fit into the existing target. None if every form fits."""
        return None

    def refused(self, rows: DataFrame) -> DataFrame | None:
        """Return these rows with values that the existing target refuses, after giving it such a rule if necessary.

        None if it refuses no single row, or the sink does not know which ones.
        """
        return None

    # -- helpers -----------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _set_up_folder(self, tmp_path: Path, spark: SparkSession) -> None:
        self.set_up(tmp_path, spark)

    def set_up(self, folder: Path, spark: SparkSession) -> None:
        """Prepare a test in its own folder."""
        self.folder, self.spark, self.unique_name = folder, spark, f"test_{seams.new_id()}"

    @property
    def context(self) -> SinkContext:
        """The context of sink `s` of pipeline `p`."""
        return self.context_of("p", self.unique_name.removeprefix("test_"))

    def context_of(self, pipeline: str, uid: str) -> SinkContext:
        """Return the context of a sink of another pipeline."""
        return SinkContext(pipeline, uid, "s", self.place(), home=str(self.folder / "ledger" / pipeline))

    def frame(self, *keys: int, value: str = "x") -> DataFrame:
        """Return one row for each key."""
        rows = [(key, value, f"part {key % 2}") for key in keys]
        return self.spark.createDataFrame(rows, COLUMNS).coalesce(1)

    def stage(self, id: int, *keys: int, value: str = "x", attempt: str = "a", by: SinkContext | None = None) -> Json:
        """Stage a row for each key, as an attempt of checkpoint `id`, and return the committable."""
        prepared = self.sink().prepare(self.frame(*keys, value=value), by or self.context, Staging(id, attempt))
        assert prepared.rows == len(keys)
        assert prepared.committable is not None
        return prepared.committable

    def publish(
        self, id: int, *staged: Json, head: Head | None = None, attempt: str = "m", by: SinkContext | None = None
    ) -> PublishedTable | None:
        """Publish staged rows, as another process would."""
        context, publisher = by or self.context, self.sink()
        head = head or publisher.head(context)
        return publisher.publish(Publication(id, 0, attempt, head.last_entry, staged), head, context)

    def last(self) -> int | None:
        """Return the last checkpoint that was published to the target."""
        return self.sink().head(self.context).last_entry

    def shows(self, *rows: tuple[int, str]) -> None:
        """Assert that a reader sees exactly these rows."""
        assert sorted(self.rows()) == sorted(rows)

    def added(self, before: Sequence[tuple[int, str]], *rows: tuple[int, str]) -> list[tuple[int, str]]:
        """Return the rows that a reader sees after these are published. If the sink upserts, they replace old ones."""
        keys = {key for key, _ in rows} if self.sink().upserts else set()
        return [*(row for row in before if row[0] not in keys), *rows]

    # -- the declaration ---------------------------------------------------------------------------------

    def test_the_declaration_is_sound_and_its_description_plain(self) -> None:
        sink = self.sink()
        assert sink.problems() == []
        described = sink.describe()
        assert json.loads(json.dumps(described)) == described
        assert sink.kind
        assert sink.target(self.place()) == self.sink().target(self.place()), "one target has one name"

    def test_no_secret_is_shown(self) -> None:
        staged = self.stage(1, 1)
        published, sink = self.publish(1, staged), self.sink()
        texts = [
            repr(sink),
            json.dumps(sink.describe()),
            sink.target(self.place()),
            json.dumps(staged),
            repr(published),
        ]
        assert [secret for secret in self.secrets if any(secret in text for text in texts)] == []

    def test_no_secret_is_shown_when_a_login_is_refused(self) -> None:
        place = self.place()
        wrong = {name: WRONG for name, value in place.connections.items() if value in self.secrets}
        if not wrong:
            pytest.skip("no connection of `place` has one of `secrets`")
        context = replace(self.context, place=replace(place, connections={**place.connections, **wrong}))
        try:
            self.sink().check(context)
        except TidegateError as error:  # other errors are the driver's, whose texts are not ours
            text = "".join(traceback.format_exception(error))
            assert [secret for secret in (*self.secrets, WRONG) if secret in text] == []

    # -- staged, then published once ---------------------------------------------------------------------

    def test_what_is_staged_is_invisible_until_it_is_published(self) -> None:
        self.sink().check(self.context)
        batch = self.stage(1, 1, 2)
        self.shows()
        assert self.last() is None
        assert self.publish(1, batch) is not None
        self.shows((1, "x"), (2, "x"))
        second = self.stage(2, 3)
        self.shows((1, "x"), (2, "x"))
        assert self.publish(2, second) is not None
        self.shows((1, "x"), (2, "x"), (3, "x"))
        assert self.last() == 2

    def test_a_committable_is_plain_json(self) -> None:
        batch = self.stage(1, 1)
        assert json.loads(json.dumps(batch)) == batch
        assert self.publish(1, json.loads(json.dumps(batch))) is not None
        self.shows((1, "x"))

    def test_the_parts_of_several_jobs_are_published_together(self) -> None:
        first, second = self.stage(1, 1, attempt="one"), self.stage(1, 2, attempt="other")
        assert self.publish(1, first, second) is not None
        self.shows((1, "x"), (2, "x"))

    def test_publishing_twice_is_publishing_once(self) -> None:
        self.publish(1, self.stage(1, 1))
        old, batch = self.sink().head(self.context), self.stage(2, 2)
        assert self.publish(2, batch, head=old) is not None
        assert self.publish(2, batch) is None
        assert self.publish(2, batch, head=old, attempt="another") is None
        self.shows((1, "x"), (2, "x"))

    def test_of_publishers_at_the_same_time_one_publishes(self) -> None:
        self.publish(1, self.stage(1, 1))
        head, batch = self.sink().head(self.context), self.stage(2, 1, 2, value="y")
        start = threading.Barrier(4)
        results: list[PublishedTable | None] = []

        def publish(number: int) -> None:
            start.wait()
            try:
                results.append(self.publish(2, batch, head=head, attempt=f"m{number}"))
            except Unavailable:
                results.append(None)  # it may give up instead of waiting, if it changes nothing

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 4
        assert sum(result is not None for result in results) == 1
        assert self.last() == 2
        self.shows(*self.added([(1, "x")], (1, "y"), (2, "y")))

    def test_a_publisher_that_slept_while_others_published_does_nothing(self) -> None:
        self.publish(1, self.stage(1, 1))
        head, batch, next_batch = self.sink().head(self.context), self.stage(2, 2), self.stage(3, 3)
        assert self.publish(2, batch, attempt="other") is not None
        assert self.publish(3, next_batch, attempt="other") is not None
        assert self.publish(2, batch, head=head, attempt="sleeper") is None
        assert self.last() == 3
        self.shows((1, "x"), (2, "x"), (3, "x"))

    def test_a_publisher_that_sleeps_right_before_it_publishes_does_nothing(self) -> None:
        self.publish(1, self.stage(1, 1))
        batch = self.stage(2, 2)
        other_results: list[PublishedTable | None] = []

        def sleep(point: str) -> None:
            if point == PUBLISHING[0] and not other_results:
                other_results.append(None)  # the other publisher passes this point, too
                other_results[0] = self.publish(2, batch, attempt="other")

        with seams.installed(replace(seams.current(), fault=sleep)):
            result = self.publish(2, batch, attempt="sleeper")
        assert other_results, "publish never reached the fault point S10.publish.before"
        assert result is None
        assert other_results[0] is not None
        assert self.last() == 2
        self.shows((1, "x"), (2, "x"))

    def test_a_checkpoint_never_comes_after_a_later_one(self) -> None:
        self.publish(5, self.stage(5, 5))
        assert self.publish(4, self.stage(4, 4)) is None
        assert self.last() == 5
        self.shows((5, "x"))

    def test_an_empty_checkpoint_changes_nothing(self) -> None:
        self.publish(1, self.stage(1, 1))
        empty = self.sink().prepare(self.frame(), self.context, Staging(2, "a"))
        assert (empty.committable, empty.rows) == (None, 0)
        self.shows((1, "x"))

    def test_pipelines_whose_names_are_prefixes_do_not_see_each_other(self) -> None:
        longer = self.context_of("p1", f"{self.context.uid}1")
        self.publish(10, self.stage(10, 10))
        assert self.sink().head(longer).last_entry is None
        assert self.publish(1, self.stage(1, 1, by=longer), by=longer) is not None
        assert self.last() == 10
        assert self.sink().head(longer).last_entry == 1
        assert self.sink().attempts(1, self.context) == []
        self.shows((1, "x"), (10, "x"))

    def test_what_was_published_is_found_again_and_verified(self) -> None:
        published = {id: self.publish(id, self.stage(id, id)) for id in (1, 2)}
        for id, table in published.items():
            assert table is not None
            located = self.sink().locate(id, self.context)
            assert located is not None
            assert (located.uri, located.version, located.log_hash) == (table.uri, table.version, table.log_hash)
            self.sink().verify(table, self.context)
        assert self.sink().locate(3, self.context) is None

    # -- attempts and their files ------------------------------------------------------------------------

    def test_a_discarded_attempt_takes_only_its_own_files(self) -> None:
        kept_batch, lost_batch = self.stage(1, 1, attempt="kept"), self.stage(1, 1, attempt="lost")
        other = self.context_of("p1", f"{self.context.uid}1")
        other_batch = self.stage(1, 7, attempt="lost", by=other)
        assert sorted(self.sink().attempts(1, self.context)) == ["kept", "lost"]
        for _ in range(2):
            self.sink().discard(self.context, Staging(1, "lost"))
        assert self.sink().attempts(1, self.context) == ["kept"]
        assert self.sink().missing_files([kept_batch], self.context) == []
        assert self.sink().missing_files([lost_batch], self.context) != []
        with pytest.raises(Corrupt):
            self.publish(1, lost_batch)
        assert self.publish(1, kept_batch) is not None
        assert self.publish(1, other_batch, by=other) is not None
        self.shows((1, "x"), (7, "x"))

    def test_retiring_the_published_attempt_changes_nothing_for_readers(self) -> None:
        for id in (1, 2, 3):
            self.publish(id, self.stage(id, id, id + 1, value=f"{id}"))
        before = self.rows()
        for id in (1, 2):
            for _ in range(2):
                self.sink().retire(self.context, Staging(id, "a"))
        self.shows(*before)

    # -- crashes -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("point", STAGING)
    def test_a_crash_while_staging_shows_nothing_and_the_next_attempt_works(self, point: str) -> None:
        with crash_at(point):
            self.stage(1, 1, attempt="dead")
        self.shows()
        assert self.publish(1, self.stage(1, 1, attempt="alive")) is not None
        self.shows((1, "x"))
        attempts = ["alive"] if point == STAGING[0] else ["alive", "dead"]
        assert sorted(self.sink().attempts(1, self.context)) == attempts

    @pytest.mark.parametrize("point", PUBLISHING)
    def test_a_crash_while_publishing_shows_all_or_nothing_and_is_repaired(self, point: str) -> None:
        self.publish(1, self.stage(1, 1))
        batch = self.stage(2, 1, 2, value="y")
        with crash_at(point):
            self.publish(2, batch)
        is_published = self.last() == 2
        assert is_published is (point == PUBLISHING[1])
        all_rows = self.added([(1, "x")], (1, "y"), (2, "y"))
        self.shows(*(all_rows if is_published else [(1, "x")]))
        assert (self.publish(2, batch) is None) is is_published
        self.shows(*all_rows)

    def test_wherever_the_sink_itself_dies_while_it_publishes_each_row_is_there_once(self) -> None:
        """Kill the publisher at many lines. Two transactions, for rows and mark, would have such a line in between."""
        self.publish(1, self.stage(1, 1))
        batch, head, publisher = self.stage(2, 2), self.sink().head(self.context), self.sink()
        with lines_reached(_files_of(publisher)) as lines:
            publisher.publish(Publication(2, 0, "m", head.last_entry, (batch,)), head, self.context)
        self.shows(*((key, "x") for key in (1, 2)))
        for key, line in enumerate(lines[:: len(lines) // self.crash_lines + 1], 3):
            batch, head, publisher = self.stage(key, key), self.sink().head(self.context), self.sink()
            with crash_at_line(line):
                publisher.publish(Publication(key, 0, "dies", head.last_entry, (batch,)), head, self.context)
            self._publish_in_the_end(key, batch)
            expected = [(published, "x") for published in range(1, key + 1)]
            assert sorted(self.rows()) == expected, f"after a crash at line {line[1]} of {line[0]}"

    def _publish_in_the_end(self, id: int, batch: Json) -> None:
        for _ in range(100):
            try:
                self.publish(id, batch, attempt="lives")
            except Unavailable:
                seams.sleep(0.1)  # the dead publisher's connection still locks the target
            else:
                break
        assert self.last() == id

    def test_rows_in_many_files_and_batches_are_all_published(self) -> None:
        keys = list(range(1, 41))
        rows = self.spark.createDataFrame([(key, "x", f"part {key % 2}" if key % 5 else None) for key in keys], COLUMNS)
        prepared = self.sink().prepare(rows.repartition(3, "k"), self.context, Staging(1, "a"))
        assert prepared.rows == len(keys)
        assert prepared.committable is not None
        with mock.patch.object(transactional, "_BATCH_ROWS", 4):
            assert self.publish(1, prepared.committable) is not None
        self.shows(*((key, "x") for key in keys))

    def test_a_process_that_dies_at_any_step_of_a_checkpoint_loses_and_doubles_nothing(self) -> None:
        source = TestSource(COLUMNS)
        pipeline = Pipeline("crashes")
        pipeline.source("rows", source).sink("s", self.sink())
        place = self.place()
        settings = {f"connections.{name}": value for name, value in place.connections.items()}
        settings |= {"data": place.base, "num_retained": "2"}
        keys: list[int] = []

        def arrive() -> None:
            keys.append(len(keys) + 1)
            source.arrive({"k": keys[-1], "v": "x", "p": "p"})

        with run(pipeline, self.folder, spark=self.spark, settings=settings) as running:
            for _ in range(3):  # the third also retires the first
                arrive()
                with points_reached() as points:
                    running.checkpoint()
            assert {*STAGING, *PUBLISHING} <= set(points)
            for point in dict.fromkeys(points):
                arrive()
                running.crash_at(point)
                arrive()
                running.until_idle()
                assert sorted(self.rows()) == [(key, "x") for key in keys], f"after a crash at {point}"

    # -- misfits, retractions and rollbacks --------------------------------------------------------------

    def test_an_output_that_does_not_fit_is_refused_before_anything_is_written(self) -> None:
        unfit = self.unfit(self.frame(2))
        if unfit is None:
            pytest.skip("this target takes any output")
        self.publish(1, self.stage(1, 1))
        with pytest.raises(Invalid):
            self.sink().prepare(unfit, self.context, Staging(2, "a"))
        assert self.sink().attempts(2, self.context) == []
        self.shows((1, "x"))

    def test_a_row_that_the_target_would_refuse_breaks_a_rule_and_is_not_staged(self) -> None:
        self.publish(1, self.stage(1, 1))
        refused = self.refused(self.frame(2, 3))
        if refused is None:
            pytest.skip("this target refuses no single row, as far as the sink knows")
        sink = self.sink()
        declared = sink.declared_rules(self.place())
        assert json.loads(json.dumps(declared)) == declared, "it is stored with the plan"
        rules = sink.row_rules(json.loads(refused.schema.json()), declared).rules
        assert all(rule.name and rule.says for rule in rules)
        breaks_any = functools.reduce(lambda first, second: first | second, map(is_broken, rules))
        assert refused.where(~breaks_any).count() == 0, "a row would be published that the target refuses"
        assert self.frame(2, 3).where(breaks_any).count() == 0, "a row is held back that the target takes"
        with pytest.raises(Invalid):
            sink.prepare(refused, self.context, Staging(2, "a"))
        self.shows((1, "x"))

    def test_rows_that_replace_others_are_published_or_refused_when_the_pipeline_is_declared(self) -> None:
        sink = self.sink()
        if why := sink.update_problems("totals"):
            assert all(why)
            return
        self.publish(1, self.stage(1, 1, 2, 3))
        prepared: Prepared = sink.prepare_with_retractions(
            self.frame(2, value="y"), self.frame(1, 2), self.context, Staging(2, "a")
        )
        assert prepared.committable is not None
        assert self.publish(2, prepared.committable) is not None
        self.shows((2, "y"), (3, "x"))

    def test_a_rollback_takes_rows_back_or_says_why_they_stay(self) -> None:
        published = {id: self.publish(id, self.stage(id, id)) for id in (1, 2, 3)}
        late_batch, old_head = self.stage(4, 4), self.sink().head(self.context)
        plan = self.sink().restore_plan(1, published[1], (), self.context)
        assert plan.exists
        assert not plan.not_published_yet
        if plan.problems:
            assert all(plan.problems)
            return
        restored = Restored(how="keep" if plan.rows_stay_reason else "restore", to=plan.target_version)
        rollback = Publication(5, 0, "back", 3, (), restore=restored, target=1)
        assert self.sink().restore(rollback, old_head, self.context) is not None
        if plan.rows_stay_reason:
            after: list[Any] = [(1, "x"), (2, "x"), (3, "x")]
        else:
            after = [(1, "x")]
        self.shows(*after)
        assert self.last() == 5
        assert self.publish(4, late_batch, head=old_head) is None, "published a checkpoint from before the rollback"
        assert self.publish(4, late_batch) is None
        self.shows(*after)
        assert self.publish(6, self.stage(6, 6)) is not None
        self.shows(*after, (6, "x"))
