"""A Delta target put back to where a checkpoint left it: by one commit, and never over what others have written."""

from __future__ import annotations

import pytest

from tests.kit.delta import by_foreigner, kv
from tests.kit.sinks import Published
from tidegate.connectors.sink import Publication
from tidegate.errors import Rejected
from tidegate.records.records import Restored
from tidegate.sinks import DeltaAppend, DeltaUpsert


class Rolled(Published):
    """A sink, and rollbacks of it."""

    def look(self, to, known=None):
        return self.sink.restore_plan(to, known, [], self.context)

    def back(self, id, to, how="restore", head=None):
        """Entry `id` goes back to checkpoint `to`."""
        head = head or self.head()
        restored = Restored(how=how, to=self.look(to).target_version)
        publication = Publication(id, 1, f"publisher-{id}", head.last_entry, (), restore=restored, target=to or 0)
        return self.sink.restore(publication, head, self.context)


@pytest.fixture
def appends(tmp_path):
    """Checkpoints 1 to 3 have added a row each."""
    table = Rolled(tmp_path)
    for id in (1, 2, 3):
        table.checkpoint(id)
    return table


def upserts(tmp_path):
    table = Rolled(tmp_path, DeltaUpsert("t", keys=["k"]))
    for id in (1, 2, 3):
        table.checkpoint(id, kv((0, f"by {id}"), (id, "new")))
    return table


def test_an_append_goes_back_and_on_and_ids_rise(appends):
    way = appends.look(1)
    assert (way.target_version.version, way.version, way.foreign_commits, way.problems) == (0, 2, (), ())
    done = appends.back(4, 1)
    assert done.version == 3
    assert appends.rows() == [(1, "row 1")]
    assert appends.head().last_entry == 4
    appends.checkpoint(5)
    assert appends.rows() == [(1, "row 1"), (5, "row 5")]
    assert appends.look(4).target_version.version == 3, "and a rollback can be gone back to"


def test_an_upsert_shows_the_rows_that_it_had(tmp_path):
    table = upserts(tmp_path)
    assert table.rows() == [(0, "by 3"), (1, "new"), (2, "new"), (3, "new")]
    table.back(4, 2)
    assert table.rows() == [(0, "by 2"), (1, "new"), (2, "new")]
    table.checkpoint(5, kv((0, "by 5")))
    assert table.rows() == [(0, "by 5"), (1, "new"), (2, "new")]


def test_it_is_committed_even_if_nothing_changes_and_fences_who_read_before(appends):
    late = appends.head()
    assert appends.back(4, 3).version == 3
    assert appends.publish(5, appends.stage(5), head=late) is None
    assert appends.back(4, 3) is None, "once"
    assert len(appends.rows()) == 3


def test_where_a_checkpoint_left_it_is_what_readers_were_told_or_found_in_the_log(appends):
    known = appends.look(2).target_version
    assert appends.look(2, known) == appends.look(2)
    lie = type(known)(uri=known.uri, version=0, log_hash=known.log_hash)
    assert appends.look(2, lie).target_version.version == 1, "a hint that is wrong is not believed"


def test_what_the_table_has_not_been_given_yet_is_told(appends):
    assert appends.look(4).not_published_yet
    assert Rolled(appends.location.local("..").resolve(), DeltaAppend("none")).look(1).not_published_yet


def test_a_table_that_it_made_later_is_emptied_and_one_that_was_there_gets_its_rows_back(tmp_path, appends):
    assert appends.look(None).target_version is None
    appends.back(4, None)
    assert appends.rows() == []
    older = Rolled(tmp_path / "older")
    from deltalake import write_deltalake

    write_deltalake(older.location.url, kv((7, "theirs")))
    for id in (1, 2):
        older.checkpoint(id)
    assert older.look(None).target_version.version == 0
    older.back(3, None)
    assert older.rows() == [(7, "theirs")]


def test_a_table_to_which_it_has_published_nothing_is_not_its_to_put_back(tmp_path):
    """All that is there is others': whatever they commit, there is no way back, and none is needed."""
    from deltalake import DeltaTable, write_deltalake

    theirs = Rolled(tmp_path)
    for key in (7, 8):
        write_deltalake(theirs.location.url, kv((key, "theirs")), mode="append")
    way = theirs.look(None)
    assert (way.exists, way.target_version, way.foreign_commits, way.problems, way.not_published_yet) == (
        False,
        None,
        (),
        (),
        False,
    )
    DeltaTable(theirs.location.url).create_checkpoint()
    theirs.location.local("_delta_log/00000000000000000000.json").unlink()
    assert theirs.look(None) == way, "nor does anybody ask what their log still tells"
    assert theirs.look(1).not_published_yet, "what is owed to it comes first"


def test_rows_of_a_predecessor_that_was_taken_over_stay(tmp_path):
    before = Rolled(tmp_path, uid="u0")
    before.checkpoint(1)
    before.checkpoint(2)
    heir = Rolled(tmp_path, DeltaAppend("t", take_over=True))
    heir.checkpoint(1, kv((7, "new")))
    heir.back(2, None)
    assert heir.rows() == [(1, "row 1"), (2, "row 2")]


def test_others_commits_are_told_and_restore_never_goes_over_them(appends):
    by_foreigner(appends.location, (9, "theirs"))
    assert appends.look(1).foreign_commits == ("version 3 (WRITE)",)
    with pytest.raises(Rejected, match="another writer has committed since version 0: 3"):
        appends.back(4, 1)
    assert appends.back(4, 1, "discard") is not None
    assert appends.rows() == [(1, "row 1")]


def test_own_rows_can_be_taken_out_alone(appends):
    by_foreigner(appends.location, (9, "theirs"))
    assert appends.look(1).not_separable_reason == ""
    appends.back(4, 1, "retract")
    assert appends.rows() == [(1, "row 1"), (9, "theirs")]
    appends.checkpoint(5)
    appends.back(6, 4, "retract")
    assert appends.rows() == [(1, "row 1"), (9, "theirs")]


def test_own_rows_that_an_earlier_rollback_took_out_come_back_with_a_checkpoint_that_had_them(appends):
    """Found by chaos: a rollback to a checkpoint that another rollback had undone left its rows out."""
    by_foreigner(appends.location, (9, "theirs"))
    appends.back(4, 1, "retract")
    appends.checkpoint(5)
    assert appends.rows() == [(1, "row 1"), (5, "row 5"), (9, "theirs")]
    appends.back(6, 3, "retract")
    assert appends.rows() == [(1, "row 1"), (2, "row 2"), (3, "row 3"), (9, "theirs")]
    appends.back(7, 5, "retract")
    assert appends.rows() == [(1, "row 1"), (5, "row 5"), (9, "theirs")], "and only those"
    appends.back(8, 2, "retract")
    assert appends.rows() == [(1, "row 1"), (2, "row 2"), (9, "theirs")]


def test_own_rows_cannot_be_taken_out_alone_once_others_have_rewritten_them(appends):
    from deltalake import DeltaTable

    DeltaTable(appends.location.url).delete("k = 2")
    assert "rewritten" in appends.look(1).not_separable_reason
    with pytest.raises(Rejected, match="rewritten"):
        appends.back(4, 1, "retract")


def test_nor_those_of_an_upsert(tmp_path):
    assert "even those of other writers" in upserts(tmp_path).look(1).not_separable_reason


def test_what_is_kept_stays_and_is_fenced(appends):
    late = appends.head()
    assert appends.back(4, 1, "keep").version == 3
    assert len(appends.rows()) == 3
    assert appends.publish(5, appends.stage(5), head=late) is None


def test_files_that_a_vacuum_took_are_named(tmp_path):
    """Scenario 10: only they tell that one cannot go back there."""
    table = upserts(tmp_path)
    from deltalake import DeltaTable

    DeltaTable(table.location.url).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    (problem,) = table.look(1).problems
    assert "files of version 0" in problem
    assert "gone" in problem
    assert table.look(3).problems == ()


def test_what_was_left_out_is_told_from_what_is_there_and_from_what_nobody_can_tell(appends):
    appends.stage(4)
    appends.back(5, 2)
    assert [appends.sink.has_skipped(id, appends.context) for id in (3, 4, 5, 6)] == [False, True, False, False]
    from deltalake import DeltaTable

    DeltaTable(appends.location.url).create_checkpoint()
    appends.location.local("_delta_log/00000000000000000002.json").unlink()
    assert not appends.sink.has_skipped(4, appends.context), "the commit that would tell is gone"


def test_a_log_that_no_longer_tells_is_no_way_back(appends):
    from deltalake import DeltaTable

    DeltaTable(appends.location.url).create_checkpoint()
    appends.location.local("_delta_log/00000000000000000000.json").unlink()
    (problem,) = appends.look(1).problems
    assert "no longer shows which version checkpoint 1 created" in problem


def test_a_table_whose_rows_may_not_be_taken_out_cannot_go_back(tmp_path):
    table = Rolled(tmp_path, DeltaAppend("t", properties={"delta.appendOnly": "true"}))
    table.checkpoint(1)
    assert any("appendOnly" in problem for problem in table.look(1).problems)
