"""The shadow of a Delta table: a table of its own in a folder inside the real one, to which a line publishes.

A table that only adds rows begins empty, with the real one's columns: what comes is what the swap adds. One that
replaces rows begins with copies of the real one's files as of the line's origin, under the same names. So of each file
that is still there at the swap, the name says whether the real table has it already.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidegate.delta import CommitStamp, Location, Snapshot, StagedFile, create, live_files
from tidegate.delta.files.copy import copy_files

__all__ = ["LINE", "promoted_files", "seed_shadow"]

LINE = "line-"
"""The prefix of the folders of shadow tables, inside the folder of the sink that they are the shadow of."""


def seed_shadow(
    real: Snapshot, at: Snapshot | None, shadow: Location, stamp: CommitStamp, properties: Mapping[str, str]
) -> None:
    """Make the shadow's table, with the real one's columns as they are now: the swap leaves them so, too.

    at: the version whose rows it begins with, in which later columns are null; None: without rows.
    """
    files = [file.staged() for file in live_files(at)] if at is not None else []
    copy_files(real.location, shadow, [file.path for file in files])
    create(shadow, real.schema, files, stamp, partition_by=real.partition_by, properties=properties)


def promoted_files(shadow: Snapshot, at: Snapshot | None, real: Location) -> tuple[list[StagedFile], list[str]]:
    """Return the shadow's own files, by their paths in the real table, and the files of version `at` that the shadow
    has replaced."""
    below = shadow.location.url.removeprefix(f"{real.url}/")
    former = {file.path for file in live_files(at)} if at is not None else set()
    shown = {file.path: file for file in live_files(shadow)}
    added = [
        msgspec.structs.replace(file.staged(), path=f"{below}/{path}")
        for path, file in shown.items()
        if path not in former
    ]
    return added, sorted(former - set(shown))
