"""Checks that Spark and this process see the same files under a path of a local disk.

Spark writes where its tasks run, and this process reads the folder on its own machine. On two machines, or in two
containers, the same path may be two folders; then every step succeeds, and the rows are lost. So the first time that a
session stages into a folder, it is checked:

    this process writes tokens into the folder      →  Spark's driver must find them
    on a cluster, tasks read them all, and write    →  this process must find their files

An object store is the same everywhere, and is not checked. An executor that joins later was not part of the check, so
the rows of every staged file are counted, too (`delta/files/footers.py: refuse_difference`).
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidegate import seams
from tidegate.delta import Location, rows_below
from tidegate.delta.files.access import unavailable
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import LOCAL_WRITES
from tidegate.spark.frame_facts import constant_setting
from tidegate.spark.storage.exact_files import escaped, exact_reader, unreadable
from tidegate.spark.storage.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_shared", "is_tidegate_server", "on_one_machine", "refuse_unshared_disks"]

_LOCAL: Final = re.compile(r"local(\[|$)")
_MARK: Final = "_tidegate_disks"
_TOKENS: Final = 32
"""Number of tasks of a cluster that write a token each."""
_NOT_FOUND: Final = ("PATH_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFoundException", "does not exist")


def refuse_unshared_disks(spark: SparkSession, locations: Iterable[Location]) -> None:
    """Raise Invalid if Spark sees another disk than this process under one of these paths. Checked once per session."""
    local = {}
    for location in locations:
        if location.is_local and not unreadable(location.url):
            local[location.url] = location
    if unknown := [location for url, location in local.items() if url not in _findings(spark)]:
        _check_in_one_query(spark, unknown)
    for location in local.values():
        if (why := _problem(spark, location)) is not None:
            raise Invalid(
                f"Spark and this process do not see the same files in {location.url}: {why}",
                expected="that the Spark server, all machines that its tasks run on, and this process see the same "
                "folder under this path",
                help="mount the folder there, too, under the same path (containers: the same volume); or use paths "
                "that all of them see, such as an object store: `root` of the settings for the ledger, states and "
                "quarantine, the sink's own for its table. Nothing was read or written",
                reason="OTHER_DISK",
            )


def is_shared(spark: SparkSession, location: Location) -> bool:
    """Return whether the location is a folder on a local disk that Spark sees as well."""
    return location.is_local and not unreadable(location.url) and _problem(spark, location) is None


def on_one_machine(spark: SparkSession) -> bool:
    """Return whether Spark's tasks run in its driver's process, so that they see the same files."""
    return _LOCAL.match(constant_setting(spark, "spark.master")) is not None


def is_tidegate_server(spark: SparkSession) -> bool:
    """Return whether tidegate has started this Spark, so that its Python workers have tidegate."""
    return bool(constant_setting(spark, LOCAL_WRITES))


def _findings(spark: SparkSession) -> dict[str, Any]:
    """Return the findings of this session so far."""
    answers: dict[str, Any] = vars(spark).setdefault(_MARK, {})
    return answers


def _problem(spark: SparkSession, location: Location) -> str | None:
    """Return why it is not the same disk, or None if it is, or the location is not local."""
    if not location.is_local or unreadable(location.url):
        return None
    answers = _findings(spark)
    if location.url not in answers:
        answers[location.url] = _check(spark, location)
    problem: str | None = answers[location.url]
    return problem


def _check_in_one_query(spark: SparkSession, locations: Sequence[Location]) -> None:
    """Check all of these with one query. Only a success counts; otherwise each is checked separately."""
    if not on_one_machine(spark):
        return
    with contextlib.ExitStack() as tokens:
        paths = [tokens.enter_context(_tokens(location, 1))[1][0] for location in locations]
        with contextlib.suppress(Exception):
            _ = exact_reader(spark, paths).format("text").load(escaped(paths)).schema
            _findings(spark).update(dict.fromkeys((location.url for location in locations), None))


def _check(spark: SparkSession, location: Location) -> str | None:
    with _tokens(location, 1 if on_one_machine(spark) else _TOKENS) as (folder, paths):
        frame = exact_reader(spark, paths).format("text").load(escaped(paths))
        try:
            _ = frame.schema  # Spark's driver looks for the files
        except Exception as error:
            if _is_missing(error):
                return "Spark does not see the files that this process writes there"
            raise
        if on_one_machine(spark):
            return None
        try:
            # Few tasks read small input; so it is spread, for every machine to write some of it.
            written = write_files(
                frame.repartition(_TOKENS), {"type": "struct", "fields": []}, location, f"{folder}/back", ()
            )
        except Unavailable as error:
            return error.what
        except Exception as error:
            if _is_missing(error):
                return "some of Spark's tasks do not see the files that this process writes there"
            raise
        count = rows_below(location, f"{folder}/back")
        if count != _TOKENS or (isinstance(written, int) and written != count):
            return f"of {_TOKENS} rows that Spark's tasks wrote there, this process sees {count}"
        return None


def _is_missing(error: Exception) -> bool:
    return any(message in str(error) for message in _NOT_FOUND)


@contextlib.contextmanager
def _tokens(location: Location, count: int) -> Iterator[tuple[str, list[str]]]:
    """Create files with unique names in a new folder, and yield its name and theirs. All created folders are
    removed."""
    name = f".tidegate-{seams.new_id()}"
    root = Path(location.url)
    created = [parent for parent in (root, *root.parents) if not parent.exists()]
    try:
        location.local(name).mkdir(parents=True)
        paths = [location.local(f"{name}/token-{number:02d}") for number in range(count)]
        for path in paths:
            path.write_text(f"{seams.new_id()}\n", encoding="ascii")
    except OSError as error:
        raise unavailable(location.url, error) from error
    try:
        yield name, [str(path) for path in paths]
    finally:
        shutil.rmtree(location.local(name), ignore_errors=True)
        for parent in created:
            with contextlib.suppress(OSError):  # another process uses it now
                parent.rmdir()
