"""Savepoints as folders of their own: all that it takes to go on from a checkpoint, wherever the folder is moved to.

    copying.json      while it is being made: what of
    pipeline.json, checkpoints/…, blobs/…, state/<operator>/…      as in the pipeline's own folder
    savepoint.json    last: what it is, and the size and sha256 of every other file

States are compacted on their way: one file, with the newest row of each key (state/whole.py). The checkpoint's records
are as they were, so what a fork takes instead of the files that they name is told by savepoint.json.

The folder reads like a ledger that has one checkpoint, all older ones being retired. Nothing that is needed of it names
a place. Tables of sinks are not in it: they belong to whoever reads them.
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
from tidegate.ledger.records import folder as entry_folder
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
        """The size and sha256 of each file in it."""
        return {path: (size, sha) for path, (size, sha) in self.ledger.unpack(self.copy.files)["files"].items()}


def copy_out(held: CheckpointSnapshot, folder: str, name: str) -> Copied:
    """Make the folder. Again, for the same checkpoint: it goes on, or is done."""
    target = folder_ledger(folder, held.origin.pipeline, held.options)
    begun = Copy(**stamp(seams.new_id()), name=name, origin=held.origin, files=Payload(data={"files": {}}))
    done = _begin(target, begun)
    if done is None:
        _spare(held, target)
        done = _filled(held, target, name)
    with contextlib.suppress(TidegateError):
        target.store.delete(_BUSY)
        held.parent.delete_pin(_owner(held, target))
    return Copied(target, done, held.options)


def _filled(held: CheckpointSnapshot, target: Ledger, name: str) -> Copy:
    """All that it takes, and last what it is."""
    files = {path: _put(target, path, data) for path, data in _records(held)}
    whole: dict[str, Payload] = {}
    for state in held.states:
        location = state_location(target.home, state, held.options)
        one = as_one_file(held.table(state), held.location(state), location)
        if one is None:
            found = copy_files(held.location(state), location, [each.file.path for each in held.table(state).files])
        else:
            found = {each.file.path: hash_of(location, each.file.path) for each in one.files}
            whole[state] = target.pack(msgspec.to_builtins(one))
        files |= {f"{state_sink(state).folder}/{path}": told for path, told in found.items()}
    files |= {blob.path: (blob.size, blob.sha) for each in whole.values() if (blob := each.blob) is not None}
    packed = target.pack({"files": {path: list(told) for path, told in sorted(files.items())}})
    done = Copy(**stamp(seams.new_id()), name=name, origin=held.origin, files=packed, states=whole)
    return target.create_copy(DONE, done)


def open_copy(folder: str, options: Mapping[str, str]) -> Copied:
    """A folder that was made by `copy_out`, wherever it is now."""
    unknown = folder_ledger(folder, "", options)
    found = unknown.copy(DONE)
    if found is None:
        half = unknown.copy(_BUSY) is not None
        raise Rejected(
            f"{folder} holds no savepoint" + (" that is whole: making it was broken off" if half else ""),
            expected="a folder with savepoint.json in it",
            help="`tidegate savepoint create PIPELINE NAME --copy FOLDER` makes one"
            + (", or goes on with it" if half else ""),
            reason="NO_SUCH_SAVEPOINT",
        )
    return Copied(folder_ledger(folder, found.origin.pipeline, options), found, options)


def verify(copied: Copied) -> list[str]:
    """What of it is not as it was copied, file by file, by hash."""
    try:
        files, location = copied.files, Location(copied.ledger.home, copied.options)
    except Corrupt as error:
        return [error.what]
    problems = []
    for path, (size, sha) in files.items():
        if (there := location.size(path)) is None:
            problems.append(f"{path} is missing")
        elif there != size or hash_of(location, path) != (size, sha):
            problems.append(f"{path} is not what was copied (its {'size' if there != size else 'hash'} differs)")
    return problems


def claim(copied: Copied, uid: str) -> None:
    """The folder belongs to the pipeline with this uid from now on, and to no other one."""
    made = copied.ledger.create_claimed(_CLAIMED, Claimed(**stamp(seams.new_id()), uid=uid))
    if made.uid != uid:
        raise _claimed(copied)


def refuse_claimed(copied: Copied, uid: str | None) -> None:
    """Somebody else has claimed it, and will remove it."""
    found = copied.ledger.claimed(_CLAIMED)
    if found is not None and found.uid != uid:
        raise _claimed(copied)


def remove(copied: Copied) -> None:
    """Delete what was copied, and nothing else; savepoint.json last, so that it can be broken off."""
    location = Location(copied.ledger.home, copied.options)
    blob = copied.copy.files.blob
    try:
        files = list(copied.files)
    except Corrupt:
        files = []  # an earlier removal came this far
    location.remove_files(files)
    location.remove_files([*([blob.path] if blob is not None else []), _CLAIMED, DONE])
    with contextlib.suppress(Unavailable):
        if not location.walk(""):
            location.remove_folder("")


# -- making one --------------------------------------------------------------------------------------------


def _begin(target: Ledger, wanted: Copy) -> Copy | None:
    """Claim the folder. It is empty, or an earlier try at the same copy; then, what it came to if it is whole."""
    done = target.copy(DONE)
    if done is None and target.copy(_BUSY) is None and target.store.names(""):
        raise _not_empty(target, "something else lies there")
    found = done or target.create_copy(_BUSY, wanted)
    same = (found.name, found.origin.uid, found.origin.entry, found.origin.manifest)
    if same != (wanted.name, wanted.origin.uid, wanted.origin.entry, wanted.origin.manifest):
        raise _not_empty(target, f"it holds savepoint {found.name!r}, checkpoint {found.origin.entry}")
    return done


def _not_empty(target: Ledger, why: str) -> Rejected:
    return Rejected(
        f"{target.home} cannot take the savepoint: {why}",
        expected="a folder that is empty, or is not there yet",
        help="choose another folder",
        reason="NOT_EMPTY",
    )


def _claimed(copied: Copied) -> Rejected:
    return Rejected(
        f"the savepoint in {copied.ledger.home} was claimed by another pipeline, which removes it",
        expected="one that is nobody's",
        help="take another savepoint; without --claim a folder is left alone",
        reason="CLAIMED",
    )


def _owner(held: CheckpointSnapshot, target: Ledger) -> str:
    return f"copy-{held.entry.id}-{sha256(target.home.encode())[:16]}"


def _spare(held: CheckpointSnapshot, target: Ledger) -> None:
    """The checkpoint is not retired while it is copied. If it is already, or is damaged, nothing is left behind."""
    owner = _owner(held, target)
    pin = Pin(
        **stamp(seams.new_id()),
        owner=owner,
        kind="copy",
        entry=held.entry.id,
        manifest=held.origin.manifest,
        by=held.origin.by,
        note=target.home,
    )
    held.parent.create_pin(pin)
    try:
        refuse_retired(held.parent, held.entry.id)
        refuse_damage(held)
    except TidegateError:
        held.parent.delete_pin(owner)
        if target.store.names("") == [_BUSY]:
            target.store.delete(_BUSY)
        raise


def _records(held: CheckpointSnapshot) -> Iterator[tuple[str, bytes]]:
    """The records and side files, as they are; and the hint with which the copy reads like a ledger."""
    assert held.entry.manifest is not None
    own = entry_folder(held.entry.id)
    paths = ["pipeline.json", f"{own}/plan.json", f"{own}/manifest-{held.origin.manifest}.json"]
    paths += [f"{own}/decision.json", f"{own}/published.json"]
    paths += [f"{entry_folder(each.entry)}/acks/{job}.json" for job, each in held.entry.manifest.jobs.items()]
    for path in dict.fromkeys([*paths, *(f"{own}/acks/{job}.json" for job in held.entry.acks)]):
        data = held.parent.store.read(path)
        if data is None:
            raise Corrupt(
                f"{held.parent.store.url(path)} is missing",
                expected="every record of a checkpoint that is on all tables",
                help="put it back from a copy, or take another checkpoint",
                reason="CHECKPOINT_DAMAGED",
            )
        yield path, data
    for blob in held.blobs:
        yield blob.path, held.parent.get_blob(blob)
    decision = held.entry.decision
    assert decision is not None
    hint = LatestHint(attempt=decision.attempt, created=decision.created, id=held.entry.id)
    yield "latest.json", encode(hint)


def _put(target: Ledger, path: str, data: bytes) -> tuple[int, str]:
    """Write it once; what an earlier try has written is the same."""
    if not target.store.create(path, data):
        if target.store.read(path) != data:
            raise _not_empty(target, f"{path} is another one")
        target.store.settle(path)  # what failed may have been the sync: seen is not yet durable
    return len(data), sha256(data)
