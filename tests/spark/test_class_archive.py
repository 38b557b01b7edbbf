"""Java's class archive, made and used by real servers."""

from pathlib import Path

import pytest

from tests.kit.jvm import QUICK
from tests.kit.sampling import in_turn
from tidegate.errors import Invalid
from tidegate.spark.class_archive import archive_key, archive_name, find_archive
from tidegate.spark.jars import jar_paths
from tidegate.spark.server import prepare, server
from tidegate.spark.session import SparkSettings, session

pytestmark = in_turn(seconds=30)


def mapped_by(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder of jars of its own, without archive."""
    jars = tmp_path / "jars"
    jars.mkdir()
    for jar in jar_paths():
        (jars / jar.name).symlink_to(jar)
    monkeypatch.setenv("TIDEGATE_JARS", str(jars))
    return tmp_path


def counted(home: Path) -> tuple[int, str]:
    """What a server counts, and the files that its JVM has mapped."""
    settings = SparkSettings(home=home, master="local[2]", memory="1g", conf=QUICK)
    try:
        with session(settings) as spark:
            return spark.range(10).count(), mapped_by(server.status(home)[0].pid)
    finally:
        server.stop(home, force=True)


def test_servers_use_the_archive_that_set_up_has_made(tmp_path):
    archive = find_archive()
    assert archive is not None, "make setup"
    rows, mapped = counted(tmp_path / "server")
    assert rows == 10
    assert str(archive) in mapped


def test_a_server_starts_without_an_archive_that_does_not_fit_it(elsewhere):
    """Of another class path, say: its bytes are not those of this Spark."""
    odd = elsewhere / "classes" / archive_name(archive_key(), 1 << 20)
    odd.parent.mkdir()
    odd.write_bytes(bytes(1 << 20))
    assert find_archive() == odd
    rows, mapped = counted(elsewhere / "server")
    assert rows == 10
    assert str(odd) not in mapped


def test_no_room_is_reported_before_anything_is_started(elsewhere, monkeypatch):
    monkeypatch.setattr(prepare, "_NEEDED_BYTES", 1 << 60)
    with pytest.raises(Invalid, match="cannot be written: .*No space left") as caught:
        prepare.make_archive()
    assert "do without the archive" in caught.value.help
    assert list((elsewhere / "classes").iterdir()) == []
