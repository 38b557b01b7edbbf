"""A remembered snapshot is used only while the log says that it is still true."""

import os
import shutil

import pytest
from deltalake import DeltaTable

from tests.kit.delta import appended, log_file, made, table_at
from tidegate.delta import open_table
from tidegate.delta.log.snapshot import recall
from tidegate.errors import Corrupt


@pytest.fixture
def location(tmp_path):
    location = table_at(tmp_path)
    made(location, (1, "a"))
    appended(location, 2, (2, "b"))
    return location


def test_a_table_that_has_not_moved_is_not_opened_again(location):
    assert open_table(location) is open_table(location)
    assert open_table(location, 1) is open_table(location)


def test_a_commit_of_ours_or_of_others_is_seen(location):
    before = open_table(location)
    appended(location, 3, (3, "c"))
    assert open_table(location).version == 2
    DeltaTable(location.url).delete("k = 3")
    assert open_table(location).version == 3
    assert before.version == before.handle.version() == 1


def test_an_older_version_is_not_taken_for_the_head(location):
    open_table(location)
    assert open_table(location, 0).version == 0
    assert open_table(location).version == 1


def test_a_head_that_was_overwritten_or_went_back_is_seen(location):
    before = open_table(location)
    text = log_file(location, 1).read_text()
    log_file(location, 1).write_text(text.replace("attempt-2", "attempt-3"))
    assert open_table(location).log_hash != before.log_hash
    log_file(location, 1).unlink()
    assert open_table(location).version == 0


def test_a_table_that_was_made_again_is_seen(location):
    before = open_table(location)
    shutil.rmtree(location.url)
    assert open_table(location) is None
    made(location, (1, "a"))
    appended(location, 2, (2, "b"))
    assert open_table(location).table_id != before.table_id


def test_an_older_commit_that_was_torn_is_seen(location):
    open_table(location)
    log_file(location, 0).write_bytes(b"")
    with pytest.raises(Corrupt):
        open_table(location)


def test_a_forked_child_opens_its_own(location):
    open_table(location)
    child = os.fork()
    if not child:
        os._exit(0 if recall(location, None) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
