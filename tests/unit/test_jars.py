"""tidegate.spark.jars: only whole jars of the list, from the folder that was meant."""

from pathlib import Path

import pytest

from tidegate.errors import Corrupt, Invalid
from tidegate.spark import jars


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
    assert "make setup" in error.value.help


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
