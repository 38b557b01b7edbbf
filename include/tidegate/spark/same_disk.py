"""Whether Spark and this process see the same files under a path of a local disk.

Spark writes where its tasks run, and this process reads what lies in the folder here. On two machines, or in two
containers, the same path may be two folders; then all goes well, and the rows are gone. So the first time that a
session stages into a folder, it is asked:

    this process leaves tokens in the folder        →  Spark's driver must find them
    on a cluster, tasks read them all, and write    →  and this process must find what they wrote

What is on an object store is the same for everybody, and is not asked about. An executor that comes later was not among
those that were asked; so whatever is staged is counted, too (`delta/files/footers.py: refuse_difference`).
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
from tidegate.sources.files.reading import escaped, exact_reader, unreadable
from tidegate.spark.writing import write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["is_shared", "on_one_machine", "refuse_other_disks", "started_by_tidegate"]

_LOCAL: Final = re.compile(r"local(\[|$)")
_MARK: Final = "_tidegate_disks"
_TOKENS: Final = 32
"""So many tasks of a cluster write one each."""
_NOT_FOUND: Final = ("PATH_NOT_FOUND", "FILE_NOT_EXIST", "FileNotFoundException", "does not exist")


def refuse_other_disks(spark: SparkSession, locations: Iterable[Location]) -> None:
    """Invalid if Spark sees another disk than this process under the path of one of these. Asked once per session."""
    asked = {each.url: each for each in locations if each.is_local and not unreadable(each.url)}
    if unknown := [each for url, each in asked.items() if url not in _known(spark)]:
        _ask_at_once(spark, unknown)
    for location in asked.values():
        if (why := _answer(spark, location)) is not None:
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
    """Whether it is a folder on a local disk that Spark sees as well."""
    return location.is_local and not unreadable(location.url) and _answer(spark, location) is None


def on_one_machine(spark: SparkSession) -> bool:
    """Whether Spark's tasks run in its driver's process: then they see what it sees."""
    return _LOCAL.match(str(spark.conf.get("spark.master", ""))) is not None


def started_by_tidegate(spark: SparkSession) -> bool:
    """Whether this Spark is one that tidegate has started, wherever that is: so its Python workers have tidegate."""
    return bool(spark.conf.get(LOCAL_WRITES, ""))


def _known(spark: SparkSession) -> dict[str, Any]:
    """What was found out in this session."""
    found: dict[str, Any] = vars(spark).setdefault(_MARK, {})
    return found


def _answer(spark: SparkSession, location: Location) -> str | None:
    """Why it is not the same disk; None: it is, or it is a question for nobody."""
    if not location.is_local or unreadable(location.url):
        return None
    known = _known(spark)
    if location.url not in known:
        known[location.url] = _ask(spark, location)
    found: str | None = known[location.url]
    return found


def _ask_at_once(spark: SparkSession, locations: Sequence[Location]) -> None:
    """One question about all of them. It is an answer if it is a yes."""
    if not on_one_machine(spark):
        return
    with contextlib.ExitStack() as held:
        paths = [held.enter_context(_tokens(each, 1))[1][0] for each in locations]
        with contextlib.suppress(Exception):
            _ = exact_reader(spark, paths).format("text").load(escaped(paths)).schema
            _known(spark).update(dict.fromkeys((each.url for each in locations), None))


def _ask(spark: SparkSession, location: Location) -> str | None:
    with _tokens(location, 1 if on_one_machine(spark) else _TOKENS) as (folder, paths):
        frame = exact_reader(spark, paths).format("text").load(escaped(paths))
        try:
            _ = frame.schema  # Spark's driver looks for the files
        except Exception as error:
            if _is_missing(error):
                return "what this process writes there is not there for Spark"
            raise
        if on_one_machine(spark):
            return None
        try:
            # What is small is read by few tasks; so it is spread, for every machine to write some of it.
            written = write_files(
                frame.repartition(_TOKENS), {"type": "struct", "fields": []}, location.full(f"{folder}/back"), ()
            )
        except Unavailable as error:
            return error.what
        except Exception as error:
            if _is_missing(error):
                return "what this process writes there is not there for some of Spark's tasks"
            raise
        found = rows_below(location, f"{folder}/back")
        if found != _TOKENS or written not in (None, found):
            return f"of {_TOKENS} rows that Spark's tasks wrote there, {found} are there for this process"
        return None


def _is_missing(error: Exception) -> bool:
    return any(each in str(error) for each in _NOT_FOUND)


@contextlib.contextmanager
def _tokens(location: Location, count: int) -> Iterator[tuple[str, list[str]]]:
    """Files that nobody else knows of, in a folder of their own, and its name. Folders made for it go with it."""
    name = f".tidegate-{seams.new_id()}"
    root = Path(location.url)
    made = [each for each in (root, *root.parents) if not each.exists()]
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
        for each in made:
            with contextlib.suppress(OSError):  # somebody else uses it by now
                each.rmdir()
