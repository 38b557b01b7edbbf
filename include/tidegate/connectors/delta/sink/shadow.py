"""The shadow of a Delta table: a separate table in a folder inside the target, to which a backfill publishes.

The shadow of an append-only sink begins empty, with the target's columns: the swap adds all of its files to the target.
The shadow of an upsert begins with copies of the target's files at the backfill's origin, under the same names. At the
swap, the name of a file then shows whether the target already has it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tidegate.delta import CommitStamp, Location, Snapshot, StagedFile, create, live_files
from tidegate.delta.files.copy import copy_files

__all__ = ["LINE", "promoted_files", "seed_shadow"]

LINE = "line-"
"""The prefix of the names of shadow tables' folders."""


def seed_shadow(
    target: Snapshot, base: Snapshot | None, shadow: Location, stamp: CommitStamp, properties: Mapping[str, str]
) -> None:
    """Create the shadow's table with the target's current columns, which the swap does not change.

    base: the target's version whose rows to copy; columns added since are null. None: begin without rows.
    """
    files = []
    if base is not None:
        files = [file.staged() for file in live_files(base)]
    copy_files(target.location, shadow, [file.path for file in files])
    create(shadow, target.schema, files, stamp, partition_by=target.partition_by, properties=properties)


def promoted_files(shadow: Snapshot, base: Snapshot | None, target: Location) -> tuple[list[StagedFile], list[str]]:
    """Return the files that the shadow has added, with paths in the target, and the base's files that it has replaced.

    base: the target's version whose rows the shadow began with.
    """
    folder = shadow.location.url.removeprefix(f"{target.url}/")
    former = set()
    if base is not None:
        former = {file.path for file in live_files(base)}
    shown = {file.path: file for file in live_files(shadow)}
    added = []
    for path, file in shown.items():
        if path not in former:
            added.append(msgspec.structs.replace(file.staged(), path=f"{folder}/{path}"))
    return added, sorted(former - set(shown))
