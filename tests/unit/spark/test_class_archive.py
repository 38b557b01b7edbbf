"""Java's class archive: used if it is whole and made for this Java; a JVM never sees another one."""

import pytest

from tidegate.spark import class_archive, conf
from tidegate.spark.conf import SparkSettings, server_conf
from tidegate.spark.server import prepare


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "jars").mkdir()
    monkeypatch.setenv("TIDEGATE_JARS", str(tmp_path / "jars"))
    for name in conf._JVM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "classes"
    folder.mkdir()
    return folder


def archive(folder, *, size=1000, told=1000, key=None):
    file = folder / class_archive.archive_name(key or class_archive.archive_key(), told)
    file.write_bytes(b"x" * size)
    return file


def test_an_archive_for_this_java_is_used_and_says_nothing_where_it_cannot_be(folder):
    file = archive(folder)
    assert class_archive.archive_options([]).split() == [
        f"-XX:SharedArchiveFile={file}",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
    ]


def test_without_an_archive_there_is_no_option(folder):
    assert class_archive.archive_options([]) == ""


def test_a_part_of_an_archive_is_not_used_because_java_dies_of_it(folder):
    archive(folder, size=999)
    assert class_archive.find_archive() is None
    assert class_archive.archive_options([]) == ""


def test_an_archive_for_another_java_is_not_used(folder):
    archive(folder, key="spark-0123456789ab")
    assert class_archive.find_archive() is None


@pytest.mark.parametrize("own", ["-XX:SharedArchiveFile=/my.jsa", "-Xshare:off", "-XX:ArchiveClassesAtExit=/my.jsa"])
def test_an_archive_of_the_users_own_wins(own, folder):
    archive(folder)
    assert class_archive.archive_options(["-Dkey=value", own]) == ""


def test_a_path_that_java_options_cannot_hold_is_left_out(folder, tmp_path, monkeypatch):
    spaced = tmp_path / "two words"
    (spaced / "jars").mkdir(parents=True)
    (spaced / "classes").mkdir()
    monkeypatch.setenv("TIDEGATE_JARS", str(spaced / "jars"))
    archive(spaced / "classes")
    assert class_archive.find_archive() is not None
    assert class_archive.archive_options([]) == ""


def test_a_submitted_job_has_none_for_its_driver_may_be_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr(conf, "archive_options", lambda options: " -XX:SharedArchiveFile=/here.jsa")
    here, elsewhere = SparkSettings(), SparkSettings(mode="submit", master="yarn")
    options = [server_conf(each, tmp_path)["spark.driver.defaultJavaOptions"] for each in (here, elsewhere)]
    assert "/here.jsa" in options[0]
    assert "/here.jsa" not in options[1]


def test_one_that_is_there_is_not_made_again(folder, monkeypatch):
    archive(folder)
    monkeypatch.setattr(prepare, "session", lambda settings: pytest.fail("it starts Spark"))
    assert prepare.make_archive() is None


def test_one_that_is_made_takes_the_place_of_those_for_another_java_or_torn_ones(folder, monkeypatch):
    archive(folder, key="spark-0123456789ab")
    archive(folder, size=999)
    monkeypatch.setattr(prepare, "_record", lambda folder, written: written.write_bytes(b"classes"))
    made = prepare.make_archive()
    assert made == folder / class_archive.archive_name(class_archive.archive_key(), len(b"classes"))
    assert made == class_archive.find_archive()
    assert list(folder.iterdir()) == [made], "nothing else stays"
