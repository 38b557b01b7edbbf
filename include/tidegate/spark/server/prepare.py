"""Creates Java's class archive (class_archive.py): a server does typical work of pipelines, and writes its loaded
classes when it ends."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import tempfile
from pathlib import Path

from tidegate.errors import Invalid, Unavailable
from tidegate.spark.class_archive import archive_key, archive_name, archives_folder, find_archive
from tidegate.spark.conf import SparkSettings
from tidegate.spark.server import server
from tidegate.spark.server.processes import identify, wait_for_end
from tidegate.spark.server.warm_up import do_everything_once
from tidegate.spark.session import session

__all__ = ["make_archive"]

_WRITE_TIMEOUT = 300.0
"""The time limit, in seconds, for the server to write its classes: it takes 10 to 30."""
_NEEDED_BYTES = 400_000_000


def make_archive() -> Path | None:
    """Create the archive for this Java and this pyspark, and remove older ones. Return None if it already exists."""
    if find_archive() is not None:
        return None
    target = archives_folder()
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=".classes-") as folder:
            _refuse_full(target)
            written = Path(folder, "written.jsa")
            _record(Path(folder), written)
            made = target / archive_name(archive_key(), _synced_size(written))
            os.replace(written, made)
    except OSError as error:
        raise Invalid(
            f"Java's class archive cannot be written: {error}",
            expected=f"{_NEEDED_BYTES // 1_000_000} MB of free space in a folder that this user can write, {target}",
            help="Correct that, or do without the archive: Spark then starts more slowly, and nothing else changes.",
            reason="CLASS_ARCHIVE",
        ) from error
    for other in target.glob("spark-*.jsa"):
        if other != made:
            other.unlink(missing_ok=True)
    return made


def _record(folder: Path, written: Path) -> None:
    """Let a server do typical work, and end it, so that it writes the classes that it has loaded."""
    options = f"-XX:ArchiveClassesAtExit={written} -XX:TieredStopAtLevel=1"
    settings = SparkSettings(
        home=folder / "server",
        master="local[2]",
        conf={"spark.driver.extraJavaOptions": options},
        answer_timeout=_WRITE_TIMEOUT,  # the watchdog would kill a JVM that writes its classes and does not answer
    )
    try:
        with session(settings) as spark:
            do_everything_once(spark, folder / "rows")
        for info in server.status(settings.home):
            process = identify(info.pid)
            os.kill(info.pid, signal.SIGTERM)  # to the JVM itself: the watchdog would not wait long enough
            if process is not None and not wait_for_end(process, _WRITE_TIMEOUT):
                raise Unavailable(
                    f"The Spark server did not write its classes within {_WRITE_TIMEOUT:g} s.",
                    help="Try again; without the archive, Spark starts more slowly.",
                    reason="CLASS_ARCHIVE",
                )
    finally:
        server.stop(settings.home, force=True)


def _synced_size(file: Path) -> int:
    """Make the file durable, and return its size."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        return os.fstat(opened.fileno()).st_size


def _refuse_full(folder: Path) -> None:
    if shutil.disk_usage(folder).free < _NEEDED_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
