"""Copies of savepoints: folders with everything needed to continue from a checkpoint. They can be moved.

    copying.json      while it is being made: the checkpoint that is copied
    pipeline.json, checkpoints/…, blobs/…, state/<operator>/…      as in the pipeline's own folder
    savepoint.json    last: a description, and the size and sha256 of every other file

States are compacted while they are copied: one file, with the newest row of each key (state/whole.py). The records of
the checkpoint stay unchanged, so savepoint.json names the files that a fork uses in place of those in the records.

The folder reads like a ledger with one checkpoint, whose older ones are retired. Nothing in it depends on its location.
It does not contain tables of sinks: they belong to their readers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from tidegate import seams
from tidegate.delta import Location
from tidegate.delta.files.copy import copy_files, hash_of
from tidegate.errors import Corrupt, Rejected, TidegateError, Unavailable
from tidegate.ledger.ledger import Ledger, folder_ledger, stamp
from tidegate.ledger.record_files import folder as entry_folder
from tidegate.lifecycle.snapshot import DONE, CheckpointSnapshot, refuse_damage, refuse_retired, state_location
from tidegate.records.codec import encode, sha256
from tidegate.records.records import Claimed, Copy, LatestHint, Payload, Pin
from tidegate.state.table import state_sink
from tidegate.state.whole import as_one_file

__all__ = ["Copied", "claim", "copy_out", "open_copy", "refuse_claimed", "remove", "verify"]

_BUSY = "copying.json"
_CLAIMED = "claimed.json"


@dataclass(frozen=True)
class Copied:
    """A folder that holds a savepoint."""

    ledger: Ledger
    copy: Copy
    options: Mapping[str, str]

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """The size and sha256 of each file in the folder."""
        return {path: (size, sha) for path, (size, sha) in self.ledger.unpack(self.copy.files)["files"].items()}


def copy_out(snapshot: CheckpointSnapshot, folder: str, name: str) -> Copied:
    """Copy the checkpoint into a folder. Repeated for the same checkpoint, it continues, or does nothing."""
    target = folder_ledger(folder, snapshot.origin.pipeline, snapshot.options)
    description = Copy(**stamp(seams.new_id()), name=name, origin=snapshot.origin, files=Payload(data={"files": {}}))
    copy = _begin(target, description)
    if copy is None:
        _spare(snapshot, target)
        copy = _copy_files(snapshot, target, name)
    with contextlib.suppress(TidegateError):
        target.store.delete(_BUSY)
        snapshot.parent.delete_pin(_owner(snapshot, target))
    return Copied(target, copy, snapshot.options)


def _copy_files(snapshot: CheckpointSnapshot, target: Ledger, name: str) -> Copy:
    """Copy all files, and create savepoint.json last."""
    files = {path: _put(target, path, data) for path, data in _records(snapshot)}
    whole: dict[str, Payload] = {}
    for state in snapshot.states:
        location = state_location(target.home, state, snapshot.options)
        compacted = as_one_file(snapshot.table(state), snapshot.location(state), location)
        if compacted is None:
            paths = [state_file.file.path for state_file in snapshot.table(state).files]
            hashes = copy_files(snapshot.location(state), location, paths)
        else:
            paths = [state_file.file.path for state_file in compacted.files]
            hashes = {path: hash_of(location, path) for path in paths}
            whole[state] = target.pack(msgspec.to_builtins(compacted))
        folder = state_sink(state).folder
        for path, size_and_sha in hashes.items():
            files[f"{folder}/{path}"] = size_and_sha
    blobs = [payload.blob for payload in whole.values() if payload.blob is not None]
    for blob in blobs:
        files[blob.path] = (blob.size, blob.sha)
    packed = target.pack({"files": {path: list(size_and_sha) for path, size_and_sha in sorted(files.items())}})
    copy = Copy(**stamp(seams.new_id()), name=name, origin=snapshot.origin, files=packed, states=whole)
    return target.create_copy(DONE, copy)


def open_copy(folder: str, options: Mapping[str, str]) -> Copied:
    """Open a folder that `copy_out` made, at its present location."""
    unnamed = folder_ledger(folder, "", options)
    copy = unnamed.copy(DONE)
    if copy is None:
        what = f"{folder} holds no savepoint"
        help = "`tidegate savepoint create PIPELINE NAME --copy FOLDER` makes one"
        if unnamed.copy(_BUSY) is not None:
            what += " that is complete: copying was interrupted"
            help += ", or continues it"
        raise Rejected(what, expected="a folder with savepoint.json in it", help=help, reason="NO_SUCH_SAVEPOINT")
    return Copied(folder_ledger(folder, copy.origin.pipeline, options), copy, options)


def verify(copied: Copied) -> list[str]:
    """Return the problems of the copied files: missing ones, and those with another size or hash."""
    try:
        files, location = copied.files, Location(copied.ledger.home, copied.options)
    except Corrupt as error:
        return [error.what]
    problems = []
    for path, (size, sha) in files.items():
        actual_size = location.size(path)
        if actual_size is None:
            problems.append(f"{path} is missing")
        elif actual_size != size:
            problems.append(f"{path} is not what was copied (its size differs)")
        elif hash_of(location, path) != (size, sha):
            problems.append(f"{path} is not what was copied (its hash differs)")
    return problems


def claim(copied: Copied, uid: str) -> None:
    """Claim the folder for the pipeline with this uid. Raise Rejected if another one has claimed it."""
    claimed = copied.ledger.create_claimed(_CLAIMED, Claimed(**stamp(seams.new_id()), uid=uid))
    if claimed.uid != uid:
        raise _claimed(copied)


def refuse_claimed(copied: Copied, uid: str | None) -> None:
    """Raise Rejected if another pipeline has claimed the folder, and will remove it."""
    claimed = copied.ledger.claimed(_CLAIMED)
    if claimed is not None and claimed.uid != uid:
        raise _claimed(copied)


def remove(copied: Copied) -> None:
    """Delete the copied files, and nothing else; savepoint.json last, so that an interrupted removal can continue."""
    location = Location(copied.ledger.home, copied.options)
    blob = copied.copy.files.blob
    try:
        files = list(copied.files)
    except Corrupt:
        files = []  # an interrupted removal has deleted them, and the list of them
    location.remove_files(files)
    if blob is not None:
        location.remove_files([blob.path])
    location.remove_files([_CLAIMED, DONE])
    with contextlib.suppress(Unavailable):
        if not location.walk(""):
            location.remove_folder("")


# -- making one --------------------------------------------------------------------------------------------


def _begin(target: Ledger, description: Copy) -> Copy | None:
    """Claim an empty folder, or one with an earlier try at the same copy. Return that copy if it is complete."""
    copy = target.copy(DONE)
    if copy is None and target.copy(_BUSY) is None and target.store.names(""):
        raise _not_empty(target, "it contains something else")
    existing = copy or target.create_copy(_BUSY, description)
    same = (existing.name, existing.origin.uid, existing.origin.entry, existing.origin.manifest)
    if same != (description.name, description.origin.uid, description.origin.entry, description.origin.manifest):
        raise _not_empty(target, f"it holds savepoint {existing.name!r}, checkpoint {existing.origin.entry}")
    return copy


def _not_empty(target: Ledger, why: str) -> Rejected:
    return Rejected(
        f"{target.home} cannot take the savepoint: {why}",
        expected="a folder that is empty, or does not exist yet",
        help="choose another folder",
        reason="NOT_EMPTY",
    )


def _claimed(copied: Copied) -> Rejected:
    return Rejected(
        f"the savepoint in {copied.ledger.home} was claimed by another pipeline, which removes it",
        expected="an unclaimed one",
        help="use another savepoint; without --claim a folder is not removed",
        reason="CLAIMED",
    )


def _owner(snapshot: CheckpointSnapshot, target: Ledger) -> str:
    return f"copy-{snapshot.entry.id}-{sha256(target.home.encode())[:16]}"


def _spare(snapshot: CheckpointSnapshot, target: Ledger) -> None:
    """Pin the checkpoint while it is copied. If it is already retired, or damaged, clean up."""
    owner = _owner(snapshot, target)
    pin = Pin(
        **stamp(seams.new_id()),
        owner=owner,
        kind="copy",
        entry=snapshot.entry.id,
        manifest=snapshot.origin.manifest,
        by=snapshot.origin.by,
        note=target.home,
    )
    snapshot.parent.create_pin(pin)
    try:
        refuse_retired(snapshot.parent, snapshot.entry.id)
        refuse_damage(snapshot)
    except TidegateError:
        snapshot.parent.delete_pin(owner)
        if target.store.names("") == [_BUSY]:
            target.store.delete(_BUSY)
        raise


def _records(snapshot: CheckpointSnapshot) -> Iterator[tuple[str, bytes]]:
    """Yield the records and side files, unchanged, and the hint that makes the copy read like a ledger."""
    assert snapshot.entry.manifest is not None
    entry_path = entry_folder(snapshot.entry.id)
    paths = ["pipeline.json", f"{entry_path}/plan.json", f"{entry_path}/manifest-{snapshot.origin.manifest}.json"]
    paths += [f"{entry_path}/decision.json", f"{entry_path}/published.json"]
    for job, handle in snapshot.entry.manifest.jobs.items():
        paths.append(f"{entry_folder(handle.entry)}/acks/{job}.json")
    for job in snapshot.entry.acks:
        paths.append(f"{entry_path}/acks/{job}.json")
    for path in dict.fromkeys(paths):
        data = snapshot.parent.store.read(path)
        if data is None:
            raise Corrupt(
                f"{snapshot.parent.store.url(path)} is missing",
                expected="every record of a checkpoint that is on all tables",
                help="put it back from a copy, or take another checkpoint",
                reason="CHECKPOINT_DAMAGED",
            )
        yield path, data
    for blob in snapshot.blobs:
        yield blob.path, snapshot.parent.get_blob(blob)
    decision = snapshot.entry.decision
    assert decision is not None
    hint = LatestHint(attempt=decision.attempt, created=decision.created, id=snapshot.entry.id)
    yield "latest.json", encode(hint)


def _put(target: Ledger, path: str, data: bytes) -> tuple[int, str]:
    """Write a file once. A file of an earlier try must have the same content."""
    if not target.store.create(path, data):
        if target.store.read(path) != data:
            raise _not_empty(target, f"{path} differs")
        target.store.sync(path)  # an earlier sync may have failed: a visible file is not yet a durable one
    return len(data), sha256(data)
