"""Forget the old part of a log: commit files that no version needs which anybody may still ask for.

Two things must hold. Nothing below a version is asked for any more: that is told by reference. And the file is a day
older than the newest commit, by the store's own times: for a commit is a put-if-absent of the next version's file, so
a process that woke up where that has been deleted would find it free.

Delta's own checkpoint of a version that stays replaces all before it. It is looked at first, and made durable.
"""

from __future__ import annotations

import itertools

from tidegate.delta.files.access import Location
from tidegate.delta.files.footers import open_parquet
from tidegate.delta.log.files import LOG, parse_log_name
from tidegate.errors import Corrupt

__all__ = ["YOUNG_S", "forget_log"]

YOUNG_S = 86_400.0
"""How much older than the newest commit a file must be. No process sleeps that long and then continues."""


def forget_log(location: Location, below: int) -> list[str]:
    """Delete the log files that no version from `below` on needs, oldest first, and return their paths.

    A crash at any point leaves a log without holes.
    """
    modified = location.modified(LOG)
    files = [file for path in modified if (file := parse_log_name(path.removeprefix(f"{LOG}/"))) is not None]
    commits = {file.version: (file.path, modified[file.path]) for file in files if file.kind == "commit"}
    checkpoints = {file.version: file.path for file in files if file.is_classic_checkpoint}
    stays = max((version for version in checkpoints if version <= below and version in commits), default=0)
    if not stays or not _whole(location, checkpoints[stays]):
        return []
    newest = commits[max(commits)][1]
    old = itertools.takewhile(lambda item: item[1][1] < newest - YOUNG_S, sorted(commits.items()))
    old_commits = {version: path for version, (path, _) in old if version < stays}
    old_checkpoints = [path for version, path in sorted(checkpoints.items()) if version in old_commits]
    paths = [*old_checkpoints, *old_commits.values()]
    location.remove_files(paths)
    return paths


def _whole(location: Location, checkpoint: str) -> bool:
    """Return true if Delta's checkpoint is readable and durable."""
    try:
        with open_parquet(location, checkpoint) as file:
            rows = file.metadata.num_rows
    except Corrupt:
        return False
    location.sync([checkpoint])
    return bool(rows)
