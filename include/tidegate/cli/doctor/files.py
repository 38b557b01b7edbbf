"""The files' part of `tidegate doctor`: what retained checkpoints name is there, and what nobody names is told of.

Nothing is removed on suspicion: a file goes if no record names it, and nobody can be about to. The pipeline may be at
work meanwhile: so it is read first up to which checkpoint all is settled, then what records name, then what lies there;
and what is of a later checkpoint stays. Files of states tell by their folder which one they are of. Side files do not:
they are written before the record that names them, so they get a day, and as long as the job may take that is at work.
In the tables of sinks nothing is collected: what is not live there may be needed by an older version; VACUUM is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from tidegate.checkpoint.references import blobs_of, states_named
from tidegate.cli.doctor.finding import Finding
from tidegate.cli.doctor.ledger import still_there
from tidegate.cli.targets import Target
from tidegate.delta import Location, live_files, open_table
from tidegate.errors import Corrupt, TidegateError
from tidegate.protocol.view import Entry
from tidegate.sinks.delta.table import DeltaSink
from tidegate.state.record import StateTable
from tidegate.state.table import STATE, state_sink

__all__ = ["check_files"]

_DAY_S = 86_400.0
_SHOWN = 3


def check_files(target: Target, entries: Sequence[Entry], settled: int, repair: bool) -> Iterator[Finding]:
    """Side files, states and tables of one pipeline. All of its records can be read.

    settled: up to here all was decided and published before `entries` were read.
    """
    # A job that checkpoints have gone past may still be at work in one that is settled.
    busy = [each for each in entries if not each.aborted and not set(each.overtakable) <= set(each.acks)]
    upto = min(settled, max((entry.id for entry in entries if entry.completed), default=0))
    at_work = [*busy, *(entry for entry in entries if entry.open)]
    yield from _guarded(target, "side files", _side_files(target, entries, at_work, repair))
    discarded = target.ledger.discarded()  # cancelled for good: the last one names what is gone
    entries = [entry for entry in entries if discarded is None or entry.id != discarded.id]
    spared = {entry.id for entry in busy}
    for folder in target.ledger.store.names("state"):
        name = f"{STATE}{folder}"
        yield from _guarded(target, f"files of {name}", _state(target, name, entries, upto, spared, repair))
    yield from _guarded(target, "files of tables", _tables(target))


def _guarded(target: Target, check: str, found: Iterable[Finding]) -> Iterator[Finding]:
    try:
        yield from found
    except TidegateError as error:
        yield Finding(target.name, check, "cannot tell", error.what, error.help)


def _side_files(target: Target, entries: Sequence[Entry], at_work: Sequence[Entry], repair: bool) -> Iterator[Finding]:
    """Those that no record names: whoever wrote them died before it wrote the record. at_work: jobs of these may write
    such records yet."""
    store, named = target.ledger.store, {blob.path for entry in entries for blob in blobs_of(entry)}
    old = _DAY_S + max((target.ledger.age(entry.plan) for entry in at_work), default=0.0)
    unnamed = [path for name in store.names("blobs") if (path := f"blobs/{name}") not in named]
    orphans = [path for path in unnamed if (store.age(path) or 0.0) > old]
    for path in orphans if repair else ():
        store.delete(path)
    yield _told(target, "side files", orphans, repair)


def _state(
    target: Target, name: str, entries: Sequence[Entry], upto: int, spared: set[int], repair: bool
) -> Iterator[Finding]:
    """upto, spared: files of checkpoints up to that one, but for these, are all named by now, or never will be."""
    check = f"files of {name}"
    location = Location(f"{target.ledger.home}/{state_sink(name).folder}", target.settings.storage_options)
    named: dict[str, tuple[int, int]] = {}
    for entry in entries:
        named |= _named(target, name, entry)
    there = dict(location.walk("tidegate"))
    lost = [(path, id) for path, (size, id) in named.items() if there.get(path) != size]
    kept = {id for id in {id for _, id in lost} if still_there(target.ledger, id)}
    gone = [f"{path} (checkpoint {id})" for path, id in lost if id in kept]
    if gone:
        advice = "put them back from a copy; `tidegate recover` tells which checkpoint is whole"
        yield Finding(target.name, check, "bad", f"{len(gone)} are gone or changed: {_some(gone)}", advice)
    else:
        yield Finding(target.name, check, "ok", f"{len(named)} that checkpoints name are there")
    snapshot = open_table(location)
    live = {file.path for file in live_files(snapshot)} if snapshot is not None else set()
    unnamed = (path for path in there if path not in named and path not in live)
    orphans = [path for path in unnamed if 0 < (id := _checkpoint(path)) <= upto and id not in spared]
    if repair:
        location.remove_files(orphans)
    yield _told(target, f"left over in {name}", orphans, repair)


def _named(target: Target, name: str, entry: Entry) -> dict[str, tuple[int, int]]:
    """The files of a state that an entry names: the size of each, and the entry."""
    payload = states_named(entry).get(name) if not entry.aborted else None
    if payload is None:
        return {}
    try:
        table = msgspec.convert(target.ledger.unpack(payload), StateTable)
    except Corrupt:
        if still_there(target.ledger, entry.id):
            raise
        return {}
    return {each.file.path: (each.file.size, entry.id) for each in table.files}


def _checkpoint(path: str) -> int:
    """Whose attempt wrote it: tidegate/<uid>-<state>/<checkpoint>/<attempt>/…; 0 if nobody can tell."""
    parts = path.split("/")
    return int(parts[2]) if len(parts) > 4 and parts[2].isdecimal() else 0


def _tables(target: Target) -> Iterator[Finding]:
    """Files that this pipeline has put into a table, that the table shows, and that somebody has removed."""
    from tidegate.cli.doctor.tables import contexts

    for sinking, context in contexts(target):
        if not isinstance(sinking.sink, DeltaSink):
            continue
        location = Location(sinking.sink.target(context.place), context.place.options)
        snapshot = open_table(location)
        if snapshot is None:
            continue
        own = [f"{each.folder}/" for each in (context, replace(context, through=True))]
        there = {path for folder in own for path, _ in location.walk(folder.rstrip("/"))}
        shown = [file.path for file in live_files(snapshot) if file.path.startswith(tuple(own))]
        gone = [path for path in shown if path not in there]
        check = f"files of {sinking.name}"
        if gone:
            advice = "put them back from a copy; or go back to a checkpoint before them: tidegate rollback"
            detail = f"{len(gone)} that the table shows are gone: {_some(gone)}"
            yield Finding(target.name, check, "bad", detail, advice)
        else:
            yield Finding(target.name, check, "ok", f"{len(shown)} of this pipeline's are there")


def _told(target: Target, check: str, orphans: list[str], repair: bool) -> Finding:
    if not orphans:
        return Finding(target.name, check, "ok", "none without a use")
    detail = f"{len(orphans)} that nothing names: {_some(orphans)}"
    if repair:
        return Finding(target.name, check, "ok", f"removed {detail}")
    return Finding(target.name, check, "note", detail, "harmless; --repair removes them")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
