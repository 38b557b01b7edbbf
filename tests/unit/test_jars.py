"""tidegate.spark.jars: only whole jars of the list, from the folder that was meant."""

from pathlib import Path

import pytest
import tomllib

from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.spark import jars
from tidegate.versions import spark
from tools import setup


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a file of the right name and size for every listed jar."""
    for jar in jars.jar_list():
        with (tmp_path / jar.file_name).open("wb") as file:
            file.truncate(jar.size)
    monkeypatch.setenv("TIDEGATE_JARS", str(tmp_path))
    return tmp_path


def test_jars_come_in_the_lists_order_from_the_named_folder(folder):
    (folder / "stranger.jar").touch()
    assert jars.jar_paths() == [folder / jar.file_name for jar in jars.jar_list()]


def test_without_a_named_folder_jars_come_from_the_checkout(monkeypatch):
    monkeypatch.delenv("TIDEGATE_JARS", raising=False)
    cache = Path(__file__).parents[2] / ".cache"
    assert {path.parent for path in jars.jar_paths()} - {cache / "jars-s3"} == {cache / "jars"}


def test_jars_for_object_stores_lie_beside_the_others_and_come_along_if_they_were_fetched(folder):
    beside = folder.with_name(f"{folder.name}-s3")
    beside.mkdir()
    for jar in jars.s3_jar_list():
        with (beside / jar.file_name).open("wb") as file:
            file.truncate(jar.size)
    assert jars.jar_paths()[-len(jars.s3_jar_list()) :] == [beside / jar.file_name for jar in jars.s3_jar_list()]
    (beside / jars.s3_jar_list()[0].file_name).unlink()
    with pytest.raises(Invalid, match=r"hadoop-aws-.*\.jar is not in .*-s3"):
        jars.jar_paths()


def test_a_jar_of_a_connector_may_be_missing_but_not_torn(folder):
    optional = [jar for jar in jars.jar_list() if jar.optional]
    assert optional, "Kafka's"
    for jar in optional:
        (folder / jar.file_name).unlink()
    assert jars.jar_paths() == [folder / jar.file_name for jar in jars.jar_list() if not jar.optional]
    (folder / optional[0].file_name).write_bytes(b"half")
    with pytest.raises(Corrupt, match="has 4 bytes"):
        jars.jar_paths()


def test_a_missing_jar_is_named_with_the_command_that_fetches_it(folder):
    missing = jars.jar_list()[2].file_name
    (folder / missing).unlink()
    with pytest.raises(Invalid, match=missing) as error:
        jars.jar_paths()
    assert error.value.reason == "JARS_MISSING"
    assert "tidegate spark jars" in error.value.help


def test_a_torn_jar_is_refused(folder):
    torn = jars.jar_list()[0]
    (folder / torn.file_name).write_bytes(b"half")
    with pytest.raises(Corrupt, match="has 4 bytes") as error:
        jars.jar_paths()
    assert error.value.expected == f"{torn.size} bytes"


@pytest.mark.parametrize("value", ["relative/jars", "/nowhere/jars", __file__])
def test_a_folder_that_is_none_is_refused(value, monkeypatch):
    monkeypatch.setenv("TIDEGATE_JARS", value)
    with pytest.raises(Invalid, match="TIDEGATE_JARS"):
        jars.jar_paths()


@pytest.mark.parametrize("version", ["4.0.1", "4.1.4", "4.2.0"])
def test_each_spark_has_the_delta_and_the_kafka_that_are_built_for_it(version, monkeypatch):
    monkeypatch.setattr(spark, "installed_version", lambda package: version)
    minor = version[:3]
    listed = jars.jar_list()
    assert [jar.name for jar in listed if jar.name.startswith("delta-spark")] == [f"delta-spark_{minor}_2.13"]
    assert [jar.version[:3] for jar in listed if jar.name.startswith("spark-sql-kafka")] == [minor]
    assert len({jar.name for jar in listed}) == len(listed) == 11


def test_the_set_up_fetches_what_the_locked_spark_runs_with():
    locked = tomllib.loads((Path(__file__).parents[2] / "uv.lock").read_text())["package"]
    version = next(package["version"] for package in locked if package["name"] == "pyspark")
    assert version.rpartition(".")[0] == setup.SPARK == spark.NEWEST


def test_outside_a_checkout_jars_are_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.delenv("TIDEGATE_JARS", raising=False)
    monkeypatch.setattr(jars, "_CHECKOUT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert jars.jars_folder() == tmp_path / "cache/tidegate/jars"
    with pytest.raises(Invalid, match="is not in") as error:
        jars.jar_paths()
    assert "`tidegate spark jars`" in error.value.help


def test_jars_for_s3_of_another_spark_are_refused_and_never_taken_along(folder, monkeypatch):
    folder.with_name(f"{folder.name}-s3").mkdir()
    monkeypatch.setattr(spark, "installed_version", lambda package: "4.1.4")
    for jar in jars.jar_list():
        with (folder / jar.file_name).open("wb") as file:
            file.truncate(jar.size)
    assert {path.parent for path in jars.jar_paths()} == {folder}
    with pytest.raises(Invalid, match=r"for Spark 4\.2, and Spark 4\.1 is installed"):
        jars.fetch_jars(s3=True, say=print)


def test_a_folder_that_cannot_be_made_is_told_with_the_command(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TIDEGATE_JARS", str(tmp_path / "file/jars"))
    with pytest.raises(Unavailable, match="Cannot use") as error:
        jars.fetch_jars(say=print)
    assert "`tidegate spark jars` again" in error.value.help
