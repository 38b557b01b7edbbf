"""Delta's own checkpoints of a log, on local disks: durable before anything names them, and done without if torn.

delta-rs makes one right behind a commit and syncs nothing of it. After a power loss `_last_checkpoint` may name a file
that is empty, torn or gone, and then no engine opens the table, though its commits are all there. So delta-rs makes it
of links to the log's files in a folder aside; it is copied, synced, and only then named.

Whoever meets one that cannot be read, made by others or before this was so, puts it aside with what names it, if the
rest of the log has every row. That is tried first, and said: `doctor` tells of it until the next one is made.
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
from tidegate.delta.files.access import Location, told
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

__all__ = ["checkpoint_if_due", "do_without_torn", "put_aside", "sync_checkpoint", "torn_checkpoints"]

log = logging.getLogger(__name__)

_EVERY = 100
"""Commits between two checkpoints, where the table does not say; as in delta-rs."""

_HINT = "_last_checkpoint"
_ASIDE = "torn-"
"""Begins the names of files that are done without: no engine takes them for a part of the log."""
_LEFT = re.compile(r"([0-9]{20})\.checkpoint\.parquet\.[0-9a-z-]+\.tmp")


def checkpoint_if_due(location: Location, version: int, configuration: Mapping[str, str]) -> None:
    """Make a checkpoint of `version`, the head, if the last one is long ago. If that fails, the next commit tries."""
    from deltalake.exceptions import DeltaError

    told_every = configuration.get("delta.checkpointInterval", "")
    every = int(told_every) if told_every.isdigit() and int(told_every) else _EVERY
    hinted = location.size(f"{LOG}/{_HINT}") is not None
    before = last_checkpoint(location) if hinted else -1
    if version - before < every:
        return
    try:
        _make(location, version, before)
    except (DeltaError, OSError, TidegateError) as error:
        log.warning("%s: no checkpoint of its log was made at version %d: %s", location.url, version, told(error))


def sync_checkpoint(location: Location) -> None:
    """Make the last checkpoint durable that another writer made."""
    if location.is_local and (version := last_checkpoint(location)):
        location.sync(f"{LOG}/{name}" for name in _checkpoints(location).get(version, ()))
        if location.size(f"{LOG}/{_HINT}") is not None:
            location.sync([f"{LOG}/{_HINT}"])


def torn_checkpoints(location: Location) -> list[str]:
    """The files of checkpoints that cannot be read, and what names one that is not there."""
    if not location.is_local:
        return []  # a file is whole there, or absent
    found = _checkpoints(location)
    torn = [name for _, names in sorted(found.items()) if not _whole(location, names) for name in names]
    named = last_checkpoint(location) if location.size(f"{LOG}/{_HINT}") is not None else None
    lost = named is not None and not any(name not in torn for name in found.get(named, ()))
    return [*([f"{LOG}/{_HINT}"] if lost else []), *(f"{LOG}/{name}" for name in torn)]


def do_without_torn(location: Location) -> bool:
    """Put aside what `torn_checkpoints` finds, if the table can be read without it. False: nothing was changed."""
    if not (torn := torn_checkpoints(location)) or not _readable_without(location, torn):
        return False
    log.warning(
        "%s: a crash tore Delta's own checkpoint of its log. Its commits hold every row, so it is done without: "
        "%s is put aside, and the next checkpoint takes its place",
        location.url,
        ", ".join(torn),
    )
    try:
        for path in torn:  # what names it goes first: a crash in between leaves what is found again
            there = location.local(path)
            with contextlib.suppress(FileNotFoundError):  # somebody else was faster
                os.replace(there, there.with_name(_ASIDE + there.name))
        location.sync([log_path(max(_commits(location)))])
    except (OSError, TidegateError) as error:
        log.warning("%s could not be put aside (%s): remove it by hand", ", ".join(torn), told(error))
        return False
    return True


def put_aside(location: Location) -> list[str]:
    """The files of torn checkpoints that the table is read without, since the last one was made."""
    if not location.is_local or not location.local(LOG).is_dir():
        return []
    return sorted(f"{LOG}/{name}" for name in os.listdir(location.local(LOG)) if name.startswith(_ASIDE))


def _make(location: Location, version: int, before: int) -> None:
    """A checkpoint of `version`, durable; then the hint that names it."""
    name, id = f"{version:020d}.checkpoint.parquet", seams.new_id()
    there = location.local(LOG)
    with _aside(location, since=before, upto=version) as copy:
        from tidegate.delta.log.snapshot import handle

        handle(copy, version).create_checkpoint()
        for made in (name, _HINT):
            _put(copy.local(LOG) / made, there / made, there / f"{made}.{id}.tmp")
            location.sync([f"{LOG}/{made}"])
    for left in os.listdir(there):
        if (match := _LEFT.fullmatch(left)) and int(match[1]) < version:
            (there / left).unlink(missing_ok=True)  # somebody died over it
    for path in put_aside(location):
        location.local(path).unlink(missing_ok=True)  # this one takes their place


def _put(source: Path, target: Path, beside: Path) -> None:
    """A copy that is whole and durable before it has its name."""
    try:
        with open(source, "rb") as read, open(beside, "xb") as write:
            shutil.copyfileobj(read, write)
            write.flush()
            os.fsync(write.fileno())
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def _aside(
    location: Location, *, since: int = 0, upto: int | None = None, without: Collection[str] = ()
) -> Iterator[Location]:
    """A table of the same log files from a version on. What is done to it, the table does not see."""
    names = [name for name in os.listdir(location.local(LOG)) if f"{LOG}/{name}" not in without]
    versions = {name: file.version for name in names if (file := parse_log_name(name)) is not None}
    with tempfile.TemporaryDirectory(prefix="tidegate-log-") as folder:
        copy = Path(folder, LOG)
        copy.mkdir()
        for name in names:
            wanted = name in versions and since <= versions[name] and (upto is None or versions[name] <= upto)
            if wanted or name == "_sidecars":
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


def _whole(location: Location, names: Collection[str]) -> bool:
    """Whether each of a checkpoint's Parquet files can be read."""
    try:
        for name in names:
            if name.endswith(".parquet"):
                with open_parquet(location, f"{LOG}/{name}") as file:
                    file.metadata  # noqa: B018 - the footer is what is torn
    except Corrupt:
        return False
    return True


def _readable_without(location: Location, torn: Collection[str]) -> bool:
    """Whether every commit behind the last whole checkpoint is there, and delta-rs makes the head's table of them."""
    from deltalake.exceptions import DeltaError

    from tidegate.delta.log.snapshot import handle

    commits = _commits(location)
    whole = [version for version, names in _checkpoints(location).items() if f"{LOG}/{names[0]}" not in torn]
    head, since = max(commits, default=-1), max(whole, default=-1) + 1
    if head < 0 or any(version not in commits for version in range(since, head + 1)):
        return False
    try:
        for version in range(since, head + 1):
            if (found := read_commit(location, version)) is None:
                return False
            found.actions()
        with _aside(location, since=max(since - 1, 0), without=torn) as copy:
            return handle(copy, None).version() == head
    except (Corrupt, DeltaError):
        return False
