"""Verifies files: those that retained checkpoints name must exist, and those that nothing names are reported.

A file is deleted only if no record names it, and no process can be about to name it. The pipeline may be running, so
the order matters: first find the last settled checkpoint, then read which files the records name, and then list the
storage. Files of later checkpoints stay. A state's file belongs to the checkpoint of its folder. Side files have no
such folder, and are written before the record that names them, so they are spared for a day, and longer if a running
job may take longer. Copies of a backfill's files, which a swap makes before it names them, are spared for a day, and as
long as a backfill exists. Tables of sinks are not cleaned up: older versions may need files that are no longer live,
and running VACUUM is up to the table's owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tidegate.checkpoint.references import blobs_of, states_named
from tidegate.connectors.delta.sink.table import DeltaSink
from tidegate.delta import Location, live_files, open_table
from tidegate.errors import Corrupt, TidegateError
from tidegate.protocol.view import Entry
from tidegate.records import typed
from tidegate.state.record import StateTable
from tidegate.state.table import STATE, state_sink
from tidegate.verify.finding import Finding, Subject
from tidegate.verify.ledger import is_still_retained
from tidegate.verify.tables import sink_contexts

__all__ = ["check_files"]

_DAY_S = 86_400.0
_MAX_LISTED = 3


def check_files(subject: Subject, entries: Sequence[Entry], settled: int, repair: bool) -> Iterator[Finding]:
    """Check side files, states and tables of one pipeline whose records can all be read.

    settled: the entry up to which everything was decided and published before `entries` were read.
    """
    # A job that was overtaken may still run for a settled checkpoint.
    busy = []
    for entry in entries:
        if not entry.aborted and not set(entry.overtakable) <= set(entry.acks):
            busy.append(entry)
    running = busy + [entry for entry in entries if entry.open]
    upto = min(settled, max((entry.id for entry in entries if entry.completed), default=0))
    yield from _guarded(subject, "side files", _side_files(subject, entries, running, repair))
    discarded = subject.ledger.discarded()
    if discarded is not None:  # after a final cancel, the last entry names files that were deleted
        entries = [entry for entry in entries if entry.id != discarded.id]
    spared = {entry.id for entry in busy}
    for folder in subject.ledger.store.names("state"):
        name = f"{STATE}{folder}"
        yield from _guarded(subject, f"files of {name}", _state(subject, name, entries, upto, spared, repair))
    yield from _guarded(subject, "files of tables", _tables(subject))


def _guarded(subject: Subject, check: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    try:
        yield from findings
    except TidegateError as error:
        yield Finding(subject.name, check, "cannot tell", error.what, error.help)


def _side_files(
    subject: Subject, entries: Sequence[Entry], running: Sequence[Entry], repair: bool
) -> Iterator[Finding]:
    """Check for side files that no record names: their writer died before it wrote the record.

    running: entries whose jobs may still write such records.
    """
    store = subject.ledger.store
    named: set[str] = set()
    for entry in entries:
        named.update(blob.path for blob in blobs_of(entry))
    min_age_s = _DAY_S + max((subject.ledger.age(entry.plan) for entry in running), default=0.0)
    orphans = []
    for name in store.names("blobs"):
        path = f"blobs/{name}"
        if path not in named and (store.age(path) or 0.0) > min_age_s:
            orphans.append(path)
    if repair:
        for path in orphans:
            store.delete(path)
    yield _find_leftover_files(subject, "side files", orphans, repair)


def _state(
    subject: Subject, name: str, entries: Sequence[Entry], upto: int, spared: set[int], repair: bool
) -> Iterator[Finding]:
    """Check the files of a state.

    upto: files of checkpoints up to this one that no record names now will never be named.
    spared: earlier checkpoints for which this is not certain.
    """
    check = f"files of {name}"
    folder = state_sink(name).folder
    location = Location(f"{subject.ledger.home}/{folder}", subject.settings.storage_options)
    named: dict[str, tuple[int, int]] = {}
    for entry in entries:
        named |= _named(subject, name, entry)
    stored = dict(location.walk("tidegate"))
    missing = [(path, id) for path, (size, id) in named.items() if stored.get(path) != size]
    checkpoints = {id for _, id in missing}
    retained = {id for id in checkpoints if is_still_retained(subject.ledger, id)}
    lost = [f"{path} (checkpoint {id})" for path, id in missing if id in retained]
    if lost:
        advice = "put them back from a copy; `tidegate recover` tells which checkpoint is whole"
        yield Finding(subject.name, check, "bad", f"{len(lost)} are gone or changed: {_some(lost)}", advice)
    else:
        yield Finding(subject.name, check, "ok", f"{len(named)} that checkpoints name are there")
    snapshot = open_table(location)
    if snapshot is not None:
        live = {file.path for file in live_files(snapshot)}
    else:
        live = set()
    orphans = []
    for path in stored:
        if path not in named and path not in live:
            id = _checkpoint(path)
            if 0 < id <= upto and id not in spared:
                orphans.append(path)
    identity = subject.ledger.identity_or_none()
    own_prefix = f"tidegate/{identity.uid}-" if identity is not None else ""
    copies = {path for path in orphans if not path.startswith(own_prefix)}
    needless = _needless_copies(subject, name, copies)
    orphans = [path for path in orphans if path not in copies or path in needless]
    if repair:
        location.remove_files(orphans)
    yield _find_leftover_files(subject, f"left over in {name}", orphans, repair)


def _needless_copies(subject: Subject, name: str, copies: set[str]) -> set[str]:
    """Return the copies of a backfill's files that no swap needs: they are older than a day, no swap has named them
    since the entries were read, and no backfill exists that could be swapped in."""
    ledger, folder = subject.ledger, state_sink(name).folder
    needless = set()
    for path in copies:
        if (ledger.store.age(f"{folder}/{path}") or 0.0) > _DAY_S:
            needless.add(path)
    if not needless:
        return set()
    if ledger.lines() or any(pin.kind == "line" for pin in ledger.pins()):
        return set()  # they may be of an earlier try of a swap, and the next try may name them
    for id in ledger.ids():
        entry = ledger.entry(id)
        if entry is not None:
            needless -= _named(subject, name, entry).keys()
    return needless


def _named(subject: Subject, name: str, entry: Entry) -> dict[str, tuple[int, int]]:
    """Return the files of a state that an entry names, with their sizes and the entry's id."""
    payload = states_named(entry).get(name) if not entry.aborted else None
    if payload is None:
        return {}
    try:
        table = typed.convert(subject.ledger.unpack(payload), StateTable)
    except Corrupt:
        if is_still_retained(subject.ledger, entry.id):
            raise
        return {}
    return {part.file.path: (part.file.size, entry.id) for part in table.files}


def _checkpoint(path: str) -> int:
    """Return the checkpoint of a state's file, tidegate/<uid>-<state>/<checkpoint>/<attempt>/…, or 0 if unknown."""
    parts = path.split("/")
    if len(parts) > 4 and parts[2].isdecimal():
        return int(parts[2])
    return 0


def _tables(subject: Subject) -> Iterator[Finding]:
    """Check for files that this pipeline added to a table, that the table names, and that are missing on storage."""
    for node, context in sink_contexts(subject):
        if not isinstance(node.sink, DeltaSink):
            continue
        location = Location(node.sink.target(context.place), context.place.options)
        snapshot = open_table(location)
        if snapshot is None:
            continue
        folders = (context.folder, replace(context, direct=True).folder)
        stored: set[str] = set()
        for folder in folders:
            stored.update(path for path, _ in location.walk(folder))
        prefixes = tuple(f"{folder}/" for folder in folders)
        live = [file.path for file in live_files(snapshot) if file.path.startswith(prefixes)]
        lost = [path for path in live if path not in stored]
        check = f"files of {node.name}"
        if lost:
            advice = (
                "put them back from a copy; or go back to a checkpoint before them: tidegate rollback MODULE:PIPELINE "
                "--to N"
            )
            detail = f"{len(lost)} that the table shows are gone: {_some(lost)}"
            yield Finding(subject.name, check, "bad", detail, advice)
        else:
            yield Finding(subject.name, check, "ok", f"{len(live)} of this pipeline's are there")


def _find_leftover_files(subject: Subject, check: str, orphans: list[str], repair: bool) -> Finding:
    if not orphans:
        return Finding(subject.name, check, "ok", "none without a use")
    detail = f"{len(orphans)} that nothing names: {_some(orphans)}"
    if repair:
        return Finding(subject.name, check, "ok", f"removed {detail}")
    return Finding(subject.name, check, "note", detail, "harmless; --repair removes them")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MAX_LISTED]) + (", …" if len(names) > _MAX_LISTED else "")
