"""Delta log checkpoints on local disks: written durably before the log refers to them, and moved away if torn.

delta-rs writes one directly after a commit without syncing it. After a power loss, `_last_checkpoint` may refer to a
file that is empty, truncated or missing, and no engine opens the table, although all of its commits exist. So delta-rs
writes the checkpoint in a separate folder, with links to the log's files; it is then copied and synced before the hint
refers to it.

A torn checkpoint by another writer or an older release is renamed, together with the hint that refers to it, if the
table can be read from the rest of the log. That is tested first, and logged; `doctor` reports it until the next
checkpoint is written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tidegate import seams
from tidegate.delta.files.access import Location, error_text
from tidegate.delta.files.footers import open_parquet
from tidegate.delta.log.files import (
    LOG,
    last_checkpoint,
    list_log,
    log_path,
    parse_log_name,
    read_commit,
)
from tidegate.errors import Corrupt, TidegateError

__all__ = ["checkpoint_if_due", "do_without_torn", "find_torn_files", "sync_checkpoint", "torn_checkpoints"]

log = logging.getLogger(__name__)

_EVERY = 100
"""The default number of commits between two checkpoints, as in delta-rs."""

_EVERY_ON_STORE = 20
"""The same on an object store, where a new process needs a request for each commit since the last checkpoint."""

_HINT = "_last_checkpoint"
_TORN_PREFIX = "torn-"
"""The prefix of files that were moved away, by which engines ignore them."""
_UNFINISHED = re.compile(r"([0-9]{20})\.(?:checkpoint\.parquet|json)\.[0-9a-z-]+\.tmp")


def checkpoint_if_due(
    location: Location, version: int, configuration: Mapping[str, str], since: int | None = None
) -> bool:
    """Write a checkpoint of `version`, the head, if one is due. If that fails, the next commit retries.

    Return whether a checkpoint newer than `since` exists now.

    since: the version of the last checkpoint that the caller knows.
    """
    from deltalake.exceptions import DeltaError

    interval = configuration.get("delta.checkpointInterval", "")
    every = _EVERY if location.is_local else _EVERY_ON_STORE
    if interval.isdigit() and int(interval):
        every = int(interval)
    if since is not None and version - since < every:
        return False
    has_hint = location.size(f"{LOG}/{_HINT}") is not None
    previous = last_checkpoint(location) if has_hint else -1
    if version - previous < every:
        return previous > (since or 0)
    try:
        _write_checkpoint(location, version, previous)
        return True
    except (DeltaError, OSError, TidegateError) as error:
        log.warning("%s: its log's checkpoint at version %d failed: %s", location.url, version, error_text(error))
        return False


def sync_checkpoint(location: Location) -> None:
    """Make the last checkpoint durable, if another writer wrote it."""
    if location.is_local and (version := last_checkpoint(location)):
        location.sync(f"{LOG}/{name}" for name in _checkpoints(location).get(version, ()))
        if location.size(f"{LOG}/{_HINT}") is not None:
            location.sync([f"{LOG}/{_HINT}"])


def torn_checkpoints(location: Location) -> list[str]:
    """Return the files of unreadable checkpoints, and the hint if it refers to a missing or unreadable one."""
    if not location.is_local:
        return []  # on an object store, a file is complete or absent
    checkpoints = _checkpoints(location)
    torn: list[str] = []
    for _, names in sorted(checkpoints.items()):
        if not _is_complete(location, names):
            torn += names
    paths = [f"{LOG}/{name}" for name in torn]
    if location.size(f"{LOG}/{_HINT}") is not None:
        hinted_names = checkpoints.get(last_checkpoint(location), [])
        if set(hinted_names) <= set(torn):
            paths.insert(0, f"{LOG}/{_HINT}")
    return paths


def do_without_torn(location: Location) -> bool:
    """Rename the files that `torn_checkpoints` returns, if the table can be read without them.

    Return False if nothing was changed.
    """
    torn = torn_checkpoints(location)
    if not torn or not _readable_without(location, torn):
        return False
    log.warning(
        "%s: a crash tore Delta's own checkpoint of its log. The commits hold every row, so it is not needed: "
        "%s is renamed, and the next checkpoint replaces it",
        location.url,
        ", ".join(torn),
    )
    try:
        for path in torn:  # the hint is first: after a crash in between, the other files are found again
            file = location.local(path)
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                os.replace(file, file.with_name(_TORN_PREFIX + file.name))
        location.sync([log_path(max(_commits(location)))])
    except (OSError, TidegateError) as error:
        log.warning("%s could not be renamed (%s): remove it by hand", ", ".join(torn), error_text(error))
        return False
    return True


def find_torn_files(location: Location) -> list[str]:
    """Return the files of torn checkpoints that were renamed since the last checkpoint was written."""
    if not location.is_local or not location.local(LOG).is_dir():
        return []
    return sorted(f"{LOG}/{name}" for name in os.listdir(location.local(LOG)) if name.startswith(_TORN_PREFIX))


def _write_checkpoint(location: Location, version: int, previous: int) -> None:
    """Write a durable checkpoint of `version`, then the hint that refers to it."""
    from tidegate.delta.log.snapshot import handle

    if not location.is_local:
        handle(location, version).create_checkpoint()
        return
    name, id = f"{version:020d}.checkpoint.parquet", seams.new_id()
    folder = location.local(LOG)
    with _link_log_from(location, since=previous, upto=version) as copy:
        handle(copy, version).create_checkpoint()
        for file in (name, _HINT):
            _put(copy.local(LOG) / file, folder / file, folder / f"{file}.{id}.tmp")
            location.sync([f"{LOG}/{file}"])
    for file in os.listdir(folder):
        match = _UNFINISHED.fullmatch(file)
        if match and int(match[1]) < version:
            (folder / file).unlink(missing_ok=True)  # its writer crashed
    for path in find_torn_files(location):
        location.local(path).unlink(missing_ok=True)  # this checkpoint replaces them


def _put(source: Path, target: Path, temporary: Path) -> None:
    """Copy a file so that it is complete and durable before it gets its name."""
    try:
        with open(source, "rb") as reader, open(temporary, "xb") as writer:
            shutil.copyfileobj(reader, writer)
            writer.flush()
            os.fsync(writer.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _link_log_from(
    location: Location, *, since: int = 0, upto: int | None = None, without: Collection[str] = ()
) -> Iterator[Location]:
    """Yield a temporary table with links to the log's files from a version on. Changes to it do not affect the
    table."""
    linked = []
    for name in os.listdir(location.local(LOG)):
        file = parse_log_name(name)
        is_in_range = file is not None and since <= file.version and (upto is None or file.version <= upto)
        if (is_in_range or name == "_sidecars") and f"{LOG}/{name}" not in without:
            linked.append(name)
    with tempfile.TemporaryDirectory(prefix="tidegate-log-") as folder:
        copy = Path(folder, LOG)
        copy.mkdir()
        for name in linked:
            (copy / name).symlink_to(location.local(LOG).absolute() / name)
        yield Location(folder)


def _checkpoints(location: Location) -> dict[int, list[str]]:
    """Return the names of the files of each checkpoint, by version."""
    names: dict[int, list[str]] = {}
    for file in list_log(location):
        if file.kind == "checkpoint":
            names.setdefault(file.version, []).append(file.name)
    return names


def _commits(location: Location) -> set[int]:
    return {file.version for file in list_log(location) if file.kind == "commit"}


def _is_complete(location: Location, names: Collection[str]) -> bool:
    """Return whether each of a checkpoint's Parquet files can be read."""
    try:
        for name in names:
            if name.endswith(".parquet"):
                with open_parquet(location, f"{LOG}/{name}") as file:
                    file.metadata  # noqa: B018 - reads the footer, which a torn file lacks
    except Corrupt:
        return False
    return True


def _readable_without(location: Location, torn: Collection[str]) -> bool:
    """Return whether every commit after the last complete checkpoint exists, and delta-rs can open the head from
    them."""
    from deltalake.exceptions import DeltaError

    from tidegate.delta.log.snapshot import handle

    commits = _commits(location)
    complete = []
    for version, names in _checkpoints(location).items():
        if f"{LOG}/{names[0]}" not in torn:
            complete.append(version)
    head, since = max(commits, default=-1), max(complete, default=-1) + 1
    if head < 0 or any(version not in commits for version in range(since, head + 1)):
        return False
    try:
        for version in range(since, head + 1):
            commit = read_commit(location, version)
            if commit is None:
                return False
            commit.actions()  # raises Corrupt if it is torn
        with _link_log_from(location, since=max(since - 1, 0), without=torn) as copy:
            return handle(copy, None).version() == head
    except (Corrupt, DeltaError):
        return False
