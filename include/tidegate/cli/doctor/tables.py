"""The tables' part of `tidegate doctor`: each published version is the one that was published, what is
still to be published is there, and what aborted attempts left behind is told, and removed on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from tidegate.checkpoint.located import located
from tidegate.checkpoint.superseded_acks import superseded_attempts
from tidegate.cli.doctor.finding import Finding
from tidegate.cli.doctor.ledger import still_there
from tidegate.cli.targets import Target
from tidegate.delta import Location, StagedFile, missing_files
from tidegate.delta.log.checkpoints import put_aside, torn_checkpoints
from tidegate.delta.log.files import read_commit
from tidegate.errors import TidegateError
from tidegate.pipeline import SinkNode
from tidegate.protocol.view import Entry
from tidegate.records.place import is_url, store_of
from tidegate.records.records import Json, Published
from tidegate.sinks.base import SinkContext, Staging
from tidegate.sinks.delta.table import refuse_unsafe_store

__all__ = ["check_tables", "contexts", "torn"]


def contexts(target: Target) -> list[tuple[SinkNode, SinkContext]]:
    """The sinks of a pipeline whose code is given, each with who it is to its target. None before its first start."""
    identity = target.ledger.identity()
    if target.pipeline is None or identity is None:
        return []
    place = target.settings.place()
    graph = target.pipeline.graph(place, target.settings.mode)
    return [
        (s, SinkContext(target.name, identity.uid, name, place, graph.by_interval, home=target.ledger.home))
        for name, s in graph.tables.items()
    ]


def check_tables(target: Target, entries: Sequence[Entry], repair: bool) -> Iterator[Finding]:
    """Everything about the tables of one pipeline."""
    try:
        place, graph = target.settings.place(), target.graph()
        told = ((entry.id, target.ledger.published(entry.id)) for entry in entries)
        published = {id: located(p, target.ledger, place, graph) for id, p in told if p is not None}
        sinks = contexts(target)
    except TidegateError as error:
        yield Finding(target.name, "tables", "bad", error.what, error.help)
        return
    yield from _versions(target, published)
    owed = [entry for entry in entries if not entry.aborted and entry.id not in published]
    yield from _staged(target, owed, published)
    yield from _stores(target, published)
    for sinking, context in sinks:
        yield from _left_over(target, sinking, context, entries, repair)


def _stores(target: Target, published: dict[int, Published]) -> Iterator[Finding]:
    """Whether the object stores of tables let only one make each version: each store once."""
    found = {store_of(at.url): at for _, at in sorted(_locations(target, published).items()) if is_url(at.url)}
    for store, location in found.items():
        try:
            refuse_unsafe_store(location)
            yield Finding(target.name, f"store {store}", "ok", f"{location.url}: creates each file once")
        except TidegateError as error:
            yield Finding(target.name, f"store {store}", "bad", error.what, error.help)


# -- what was published --------------------------------------------------------------------------------


def _versions(target: Target, published: dict[int, Published]) -> Iterator[Finding]:
    """One finding per table: are the recorded commits still the ones in its log?"""
    recorded: dict[tuple[str, str], dict[int, tuple[int, str]]] = {}
    for id, record in published.items():
        for sink, table in record.tables.items():
            recorded.setdefault((sink, table.uri), {}).setdefault(table.version, (id, table.log_hash))
    for (sink, uri), versions in recorded.items():
        location = Location(uri, target.settings.storage_options)
        yield _versions_of(target, sink, location, versions)
        yield from torn(target, f"log of {sink}", location)


def torn(target: Target, check: str, location: Location) -> Iterator[Finding]:
    """Delta's own checkpoint of a log that a crash has torn: done without, or in the way of whoever reads the table."""
    if files := torn_checkpoints(location):
        detail = f"{location.url}: {', '.join(files)} cannot be read, so other engines cannot open the table"
        advice = (
            "the next publication puts it aside, if the log's commits hold every row; if not, restore it from a copy"
        )
        yield Finding(target.name, check, "bad", detail, advice)
    if files := put_aside(location):
        detail = (
            f"{location.url}: a crash, a power loss or a full disk tore Delta's own checkpoint of its log. It is done "
            f"without, no row is missing, and the next one takes its place; put aside: {', '.join(files)}"
        )
        yield Finding(target.name, check, "note", detail, "look after the disk and the machine; delete it if you like")


def _versions_of(target: Target, sink: str, location: Location, versions: dict[int, tuple[int, str]]) -> Finding:
    check, gone = f"table {sink}", []
    advice = "the table was dropped, made again or put back from a copy: put the right one back"
    try:
        for version, (id, log_hash) in sorted(versions.items()):
            commit = read_commit(location, version)
            if commit is None:
                gone.append(version)
            elif commit.sha != log_hash:
                wrong = f"{location.url} version {version} is not the commit that checkpoint {id} published"
                return Finding(target.name, check, "bad", wrong, advice)
    except TidegateError as error:
        return Finding(target.name, check, "cannot tell", error.what, error.help)
    if gone and max(versions) in gone:
        return Finding(target.name, check, "bad", f"{location.url} has no version {max(versions)} any more", advice)
    if gone:
        detail = f"{location.url}: the log's files of {len(gone)} older versions are gone (cleaned up)"
        return Finding(target.name, check, "note", detail)
    return Finding(target.name, check, "ok", f"{len(versions)} versions of {location.url} are as published")


# -- what is still to be published ---------------------------------------------------------------------


def _staged(target: Target, owed: Sequence[Entry], published: dict[int, Published]) -> Iterator[Finding]:
    """The files that acks of undecided or unpublished checkpoints name must be there until they are published."""
    if not owed:
        return
    locations = _locations(target, published)
    for entry in (each for each in owed if still_there(target.ledger, each.id)):
        for sink, payload in ((s, p) for a in entry.acks.values() for s, p in a.ack.sinks.items()):
            check = f"staged for {sink} in checkpoint {entry.id}"
            location = locations.get(sink)
            if location is None:
                advice = "give the pipeline as MODULE:pipeline"
                yield Finding(target.name, check, "cannot tell", "where the table lies is not recorded yet", advice)
                continue
            try:
                files = _files(target.ledger.unpack(payload))
                gone = missing_files(location, files)
            except TidegateError as error:
                if still_there(target.ledger, entry.id):
                    yield Finding(target.name, check, "bad", error.what, error.help)
                continue
            if gone and still_there(target.ledger, entry.id):
                detail = f"{len(gone)} of {len(files)} files are gone or changed, first {gone[0]}"
                yield Finding(target.name, check, "bad", detail, "put them back: did a VACUUM or a clean-up run there?")
            else:
                yield Finding(target.name, check, "ok", f"{len(files)} files, not published yet")


def _locations(target: Target, published: dict[int, Published]) -> dict[str, Location]:
    """Where each sink's table lies: by the pipeline's code, else by what was published last."""
    options = target.settings.storage_options
    found = {name: Location(t.uri, options) for id in sorted(published) for name, t in published[id].tables.items()}
    found |= {s.name: Location(s.sink.target(context.place), options) for s, context in contexts(target)}
    return found


def _files(committable: Json) -> list[StagedFile]:
    return [msgspec.convert(file, StagedFile) for file in committable.get("files", [])]


# -- what was left behind ------------------------------------------------------------------------------


def _left_over(
    target: Target, sinking: SinkNode, context: SinkContext, entries: Sequence[Entry], repair: bool
) -> Iterator[Finding]:
    """Attempts that staged files and do not count. Those of aborted checkpoints may go at any time."""
    check = f"left over for {sinking.name}"
    dead: list[Staging] = []
    lost: list[Staging] = []
    try:
        for entry in entries:
            counting = {acked.ack.attempt for acked in entry.acks.values()} if not entry.aborted else set()
            counting -= superseded_attempts(target.ledger, entry)
            attempts = filter(entry.owns, sinking.sink.attempts(entry.id, context))
            found = [attempt for attempt in attempts if attempt not in counting]
            if entry.aborted:
                dead += [Staging(entry.id, attempt) for attempt in found]
            elif entry.completed:
                lost += [Staging(entry.id, attempt) for attempt in found]
        if repair:
            for id in {staging.checkpoint for staging in dead}:
                target.ledger.settle_decision(id)  # W2: an abort that a power loss takes back is none
            for staging in dead:
                sinking.sink.discard(context, staging)
    except TidegateError as error:
        yield Finding(target.name, check, "cannot tell", error.what, error.help)
        return
    if dead and not repair:
        detail = f"{len(dead)} attempts of aborted checkpoints {_ids(dead)}"
        yield Finding(target.name, check, "note", detail, "harmless; --repair removes them")
    elif dead:
        yield Finding(target.name, check, "ok", f"removed {len(dead)} attempts of aborted checkpoints {_ids(dead)}")
    if lost:
        detail = f"of {len(lost)} attempts of completed checkpoints {_ids(lost)}; they go when those are retired"
        yield Finding(target.name, f"files that lost for {sinking.name}", "ok", detail)
    if not dead:
        yield Finding(target.name, check, "ok", "nothing")


def _ids(stagings: list[Staging]) -> str:
    return ", ".join(map(str, sorted({staging.checkpoint for staging in stagings})))
