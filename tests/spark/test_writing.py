"""Staged files are written by Spark: as the process would write them itself, without help from a process per file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tidegate.delta import Location
from tidegate.records.place import LOCAL_WRITES
from tidegate.spark.storage.writing import write_files

SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
HADOOPS = "org.apache.hadoop.fs.RawLocalFileSystem"


def write(spark: Any, folder: Path) -> list[str]:
    """Ten rows into a folder; what lies there afterwards."""
    write_files(spark.range(10), SCHEMA, Location(str(folder.parent)), folder.name, ())
    assert spark.read.parquet(str(folder)).count() == 10
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def session(spark: Any) -> Any:
    """A session whose own settings nobody else sees."""
    return spark.newSession()


def test_only_data_files_are_left_and_they_can_be_read_by_whom_the_umask_lets(session, tmp_path):
    names = write(session, tmp_path / "out")
    assert names
    assert all(name.startswith("part-") and name.endswith(".parquet") for name in names)
    probe = tmp_path / "probe"
    subprocess.run(["touch", str(probe)], check=True)  # by a child, as Spark is one
    assert {os.stat(tmp_path / "out" / name).st_mode for name in names} == {probe.stat().st_mode}


def test_sessions_of_tidegate_have_a_class_that_starts_no_processes_and_it_is_the_one_that_writes(session, tmp_path):
    assert session.conf.get(LOCAL_WRITES) != HADOOPS
    session.conf.set(LOCAL_WRITES, "nobody.knows.This")
    with pytest.raises(Exception, match=r"nobody\.knows\.This"):
        write(session, tmp_path / "out")


def test_a_session_that_has_no_such_class_writes_with_hadoops_own(session, tmp_path):
    """As on a server that somebody else started: Spark without our jars."""
    session.conf.unset(LOCAL_WRITES)
    assert session.conf.get(LOCAL_WRITES, "none") == "none"
    assert all(name.startswith("part-") for name in write(session, tmp_path / "out"))
