"""Delete the old part of a log: commit files that no version in use needs.

Two conditions must hold. The caller guarantees that no version below `below` is needed any more. And a file must be
a day older than the newest commit, by the store's clock: a commit is a put-if-absent of the next version's file, so a
process that wakes up after a long pause could otherwise commit a version whose file has been deleted.

Delta's own checkpoint of a remaining version replaces all earlier commits. It is first checked and made durable.
"""

from __future__ import annotations

from tidegate.delta.files.access import Location
from tidegate.delta.files.footers import open_parquet
from tidegate.delta.log.files import LOG, parse_log_name
from tidegate.errors import Corrupt

__all__ = ["YOUNG_S", "forget_log"]

YOUNG_S = 86_400.0
"""How much older than the newest commit a file must be. No process pauses that long and then continues."""


def forget_log(location: Location, below: int) -> list[str]:
    """Delete the log files that no version from `below` on needs, oldest first, and return their paths.

    A crash at any point leaves a log without gaps.
    """
    modified = location.modified(LOG)
    commits: dict[int, str] = {}
    checkpoints: dict[int, str] = {}
    for path in modified:
        file = parse_log_name(path.removeprefix(f"{LOG}/"))
        if file is not None and file.kind == "commit":
            commits[file.version] = path
        elif file is not None and file.is_classic_checkpoint:
            checkpoints[file.version] = path
    first = max((version for version in checkpoints if version <= below and version in commits), default=0)
    if not first or not _is_usable(location, checkpoints[first]):
        return []
    keep_since = modified[commits[max(commits)]] - YOUNG_S
    old_versions = []
    for version, path in sorted(commits.items()):
        if version >= first or modified[path] >= keep_since:
            break
        old_versions.append(version)
    paths = [checkpoints[version] for version in old_versions if version in checkpoints]
    for version in old_versions:
        paths.append(commits[version])
    location.remove_files(paths)
    return paths


def _is_usable(location: Location, checkpoint: str) -> bool:
    """Make a Delta log checkpoint durable, and return whether it is readable."""
    try:
        with open_parquet(location, checkpoint) as file:
            rows = file.metadata.num_rows
    except Corrupt:
        return False
    location.sync([checkpoint])
    return bool(rows)
