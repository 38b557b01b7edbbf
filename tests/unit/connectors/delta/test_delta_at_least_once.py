"""At least once: a job commits its own rows to a Delta table, beside what is published after decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit.delta import head, kv
from tests.kit.sinks import Published
from tidegate.connectors.sink import Publication, Staging
from tidegate.delta import find_commit, open_table
from tidegate.records.records import Restored
from tidegate.sinks import DeltaUpsert


class Through(Published):
    """The sink as a job uses it."""

    def __init__(self, folder, sink=None):
        super().__init__(folder, sink)
        self.context = replace(self.context, direct=True)

    def publish(self, id, *committables, head=None, attempt=""):
        head = head or self.head()
        publication = Publication(id, 0, attempt or f"attempt{id}", head.last_entry, committables, direct=True)
        return self.sink.publish(publication, head, self.context)


def test_two_attempts_at_one_checkpoint_both_write(tmp_path):
    job = Through(tmp_path)
    one, two = job.stage(1), job.stage(2, kv((1, "row 1")))
    assert job.publish(1, one, attempt="one").version == 0
    assert job.publish(1, two, attempt="two").version == 1
    assert job.rows() == [(1, "row 1")] * 2
    assert job.head().last_entry == 1, "by which one that has slept knows that others have gone on"


def test_its_own_commit_is_told_from_another_attempts(tmp_path):
    job = Through(tmp_path)
    job.checkpoint(1)
    old, batch = job.head(), job.stage(2)
    done = job.publish(2, batch, head=old, attempt="one")
    assert job.publish(2, batch, head=old, attempt="one") == done, "an answer that was lost"
    assert job.publish(2, batch, head=old, attempt="two") is None, "a lost race"


def test_what_is_published_after_decisions_knows_nothing_of_it(tmp_path):
    published, job = Published(tmp_path), Through(tmp_path)
    published.checkpoint(1)
    job.checkpoint(5)
    assert (published.head().last_entry, job.head().last_entry) == (1, 5)
    published.checkpoint(6)
    assert published.rows() == [(1, "row 1"), (5, "row 5"), (6, "row 6")]
    assert head(published.location).txn("tidegate/u1/s") == 6
    assert find_commit(open_table(published.location), job.context.app_id, 5).version == 1


def test_no_clean_up_of_what_was_staged_for_a_decision_finds_its_files(tmp_path):
    """They are live: the table names them, whatever becomes of the checkpoint."""
    published, job = Published(tmp_path), Through(tmp_path)
    job.checkpoint(1)
    assert published.sink.attempts(1, published.context) == []
    published.sink.discard(published.context, Staging(1, "attempt1"))
    published.sink.retire(published.context, Staging(1, "attempt1"))
    assert published.rows() == [(1, "row 1")]
    assert job.sink.attempts(1, job.context) == ["attempt1"]


def test_an_upsert_replaces_rows_at_once(tmp_path):
    job = Through(tmp_path, DeltaUpsert("t", keys=["k"]))
    job.checkpoint(1, kv((0, "by 1"), (1, "new")))
    job.checkpoint(2, kv((0, "by 2"), (2, "new")))
    assert job.rows() == [(0, "by 2"), (1, "new"), (2, "new")]
    job.publish(2, job.stage(3, kv((0, "by 2"), (2, "new"))), attempt="again")
    assert job.rows() == [(0, "by 2"), (1, "new"), (2, "new")], "by key, what comes twice is there once"


@pytest.mark.parametrize("how", ["restore", "retract"])
def test_a_rollback_to_exactly_once_takes_it_back(tmp_path, how):
    published, job = Published(tmp_path), Through(tmp_path)
    published.checkpoint(1)
    job.checkpoint(2)
    job.checkpoint(3)
    way = published.sink.restore_plan(1, None, [], published.context)
    assert (way.foreign_commits, way.not_separable_reason, way.problems) == ((), "", ()), "it is no stranger's"
    now = published.head()
    back = Publication(4, 1, "back", now.last_entry, (), restore=Restored(how=how, to=way.target_version), target=1)
    assert published.sink.restore(back, now, published.context) is not None
    assert published.rows() == [(1, "row 1")]


def test_keeping_the_rows_is_a_commit_too(tmp_path):
    published, job = Published(tmp_path), Through(tmp_path)
    job.checkpoint(1)
    now = published.head()
    back = Publication(2, 1, "back", now.last_entry, (), restore=Restored(how="keep", to=None), target=1)
    assert published.sink.restore(back, now, published.context).version == 1
    assert (published.rows(), published.head().last_entry) == ([(1, "row 1")], 2)
