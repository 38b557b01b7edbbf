"""Delta log checkpoints on local disks: durable before anything names them, and moved out of the way if torn.

delta-rs makes one right after a commit and syncs nothing of it. After a power loss `_last_checkpoint` may name a file
that is empty, torn or gone, and then no engine opens the table, though its commits are all there. So delta-rs makes the
checkpoint in a separate folder, from links to the log's files; then it is copied, synced, and only then named.

A checkpoint that cannot be read, made by others or by an older release, is put aside together with the hint that names
it, if the rest of the log has every row. That is tried out first, and logged; `doctor` reports it until the next
checkpoint is made.
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
"""Commits between two checkpoints, where the table does not say; as in delta-rs."""

_EVERY_IN_BUCKET = 20
"""The same on an object store, where a new process reads each commit since the last checkpoint by a request."""

_HINT = "_last_checkpoint"
_ASIDE = "torn-"
"""Prefix of the files that were put aside: no engine takes them for a part of the log."""
_UNFINISHED = re.compile(r"([0-9]{20})\.(?:checkpoint\.parquet|json)\.[0-9a-z-]+\.tmp")


def checkpoint_if_due(
    location: Location, version: int, configuration: Mapping[str, str], since: int | None = None
) -> bool:
    """Make a checkpoint of `version`, the head, if one is due. If that fails, the next commit tries again.

    since: the version of the last one, as far as the caller knows. Return whether there is a newer one now.
    """
    from deltalake.exceptions import DeltaError

    interval = configuration.get("delta.checkpointInterval", "")
    usual = _EVERY if location.is_local else _EVERY_IN_BUCKET
    every = int(interval) if interval.isdigit() and int(interval) else usual
    if since is not None and version - since < every:
        return False
    has_hint = location.size(f"{LOG}/{_HINT}") is not None
    before = last_checkpoint(location) if has_hint else -1
    if version - before < every:
        return before > (since or 0)
    try:
        _make(location, version, before)
        return True
    except (DeltaError, OSError, TidegateError) as error:
        log.warning("%s: no checkpoint of its log was made at version %d: %s", location.url, version, error_text(error))
        return False


def sync_checkpoint(location: Location) -> None:
    """Make the last checkpoint durable that another writer made."""
    if location.is_local and (version := last_checkpoint(location)):
        location.sync(f"{LOG}/{name}" for name in _checkpoints(location).get(version, ()))
        if location.size(f"{LOG}/{_HINT}") is not None:
            location.sync([f"{LOG}/{_HINT}"])


def torn_checkpoints(location: Location) -> list[str]:
    """Return the files of checkpoints that cannot be read, and the hint if it names one that is not there."""
    if not location.is_local:
        return []  # on an object store a file is whole or absent
    checkpoints = _checkpoints(location)
    torn = [name for _, names in sorted(checkpoints.items()) if not _whole(location, names) for name in names]
    hinted = last_checkpoint(location) if location.size(f"{LOG}/{_HINT}") is not None else None
    is_hint_wrong = hinted is not None and not any(name not in torn for name in checkpoints.get(hinted, ()))
    return [*([f"{LOG}/{_HINT}"] if is_hint_wrong else []), *(f"{LOG}/{name}" for name in torn)]


def do_without_torn(location: Location) -> bool:
    """Put aside the files that `torn_checkpoints` returns, if the table can be read without them.

    Return False if nothing was changed.
    """
    if not (torn := torn_checkpoints(location)) or not _readable_without(location, torn):
        return False
    log.warning(
        "%s: a crash tore Delta's own checkpoint of its log. Its commits hold every row, so it is done without: "
        "%s is put aside, and the next checkpoint takes its place",
        location.url,
        ", ".join(torn),
    )
    try:
        for path in torn:  # the hint goes first: after a crash in between, the rest is found again
            file = location.local(path)
            with contextlib.suppress(FileNotFoundError):  # somebody else was faster
                os.replace(file, file.with_name(_ASIDE + file.name))
        location.sync([log_path(max(_commits(location)))])
    except (OSError, TidegateError) as error:
        log.warning("%s could not be put aside (%s): remove it by hand", ", ".join(torn), error_text(error))
        return False
    return True


def find_torn_files(location: Location) -> list[str]:
    """Return the files of torn checkpoints that were put aside since the last checkpoint was made."""
    if not location.is_local or not location.local(LOG).is_dir():
        return []
    return sorted(f"{LOG}/{name}" for name in os.listdir(location.local(LOG)) if name.startswith(_ASIDE))


def _make(location: Location, version: int, before: int) -> None:
    """Make a durable checkpoint of `version`, then the hint that names it."""
    from tidegate.delta.log.snapshot import handle

    if not location.is_local:
        handle(location, version).create_checkpoint()
        return
    name, id = f"{version:020d}.checkpoint.parquet", seams.new_id()
    folder = location.local(LOG)
    with _link_log_from(location, since=before, upto=version) as copy:
        handle(copy, version).create_checkpoint()
        for file in (name, _HINT):
            _put(copy.local(LOG) / file, folder / file, folder / f"{file}.{id}.tmp")
            location.sync([f"{LOG}/{file}"])
    for file in os.listdir(folder):
        if (match := _UNFINISHED.fullmatch(file)) and int(match[1]) < version:
            (folder / file).unlink(missing_ok=True)  # its writer died
    for path in find_torn_files(location):
        location.local(path).unlink(missing_ok=True)  # this checkpoint takes their place


def _put(source: Path, target: Path, temporary: Path) -> None:
    """Copy a file so that it is whole and durable before it has its name."""
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
    """Yield a temporary table with links to the log's files from a version on. Changes to it do not touch the table."""
    names = [name for name in os.listdir(location.local(LOG)) if f"{LOG}/{name}" not in without]
    versions = {name: file.version for name in names if (file := parse_log_name(name)) is not None}
    with tempfile.TemporaryDirectory(prefix="tidegate-log-") as folder:
        copy = Path(folder, LOG)
        copy.mkdir()
        for name in names:
            in_range = name in versions and since <= versions[name] and (upto is None or versions[name] <= upto)
            if in_range or name == "_sidecars":
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
    """Return true if each of a checkpoint's Parquet files can be read."""
    try:
        for name in names:
            if name.endswith(".parquet"):
                with open_parquet(location, f"{LOG}/{name}") as file:
                    file.metadata  # noqa: B018 - the footer is what is torn
    except Corrupt:
        return False
    return True


def _readable_without(location: Location, torn: Collection[str]) -> bool:
    """Return true if every commit after the last whole checkpoint is there, and delta-rs makes the head's table of
    them."""
    from deltalake.exceptions import DeltaError

    from tidegate.delta.log.snapshot import handle

    commits = _commits(location)
    whole = [version for version, names in _checkpoints(location).items() if f"{LOG}/{names[0]}" not in torn]
    head, since = max(commits, default=-1), max(whole, default=-1) + 1
    if head < 0 or any(version not in commits for version in range(since, head + 1)):
        return False
    try:
        for version in range(since, head + 1):
            if (commit := read_commit(location, version)) is None:
                return False
            commit.actions()
        with _link_log_from(location, since=max(since - 1, 0), without=torn) as copy:
            return handle(copy, None).version() == head
    except (Corrupt, DeltaError):
        return False
