"""Verifies tables: published versions must be unchanged, and staged files must still exist.

Files of aborted checkpoints are reported, and deleted with `repair`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from tidegate.checkpoint.located import located
from tidegate.checkpoint.publishing.table_mismatch import deleted_table_error
from tidegate.checkpoint.superseded_acks import superseded_attempts
from tidegate.connectors.delta.sink.table import refuse_unsafe_store
from tidegate.connectors.sink import SinkContext, Staging
from tidegate.connectors.transactional import TransactionalSink
from tidegate.delta import Location, StagedFile, missing_files, open_table
from tidegate.delta.log.checkpoints import find_torn_files, torn_checkpoints
from tidegate.delta.log.files import read_commit
from tidegate.errors import Corrupt, TidegateError
from tidegate.pipeline import SinkNode
from tidegate.protocol.view import Entry
from tidegate.records import typed
from tidegate.records.place import is_url, store_of
from tidegate.records.records import Json, Published, PublishedTable
from tidegate.state.record import StateTable
from tidegate.state.table import STATE
from tidegate.verify.finding import Finding, Subject
from tidegate.verify.ledger import is_still_retained

__all__ = ["check_log_checkpoints", "check_tables", "sink_contexts", "uncounted_attempts"]


def sink_contexts(subject: Subject) -> list[tuple[SinkNode, SinkContext]]:
    """Return the sinks in the pipeline's code, each with its context. Empty before the first start."""
    identity = subject.ledger.identity()
    if subject.pipeline is None or identity is None:
        return []
    place = subject.settings.place()
    graph = subject.pipeline.graph(place, subject.settings.mode)
    return [
        (node, SinkContext(subject.name, identity.uid, name, place, graph.by_interval, home=subject.ledger.home))
        for name, node in graph.tables.items()
    ]


def check_tables(subject: Subject, entries: Sequence[Entry], repair: bool) -> Iterator[Finding]:
    """Check the tables of one pipeline."""
    try:
        place, graph = subject.settings.place(), subject.graph()
        published: dict[int, Published] = {}
        for entry in entries:
            record = subject.ledger.published(entry.id)
            if record is not None:
                published[entry.id] = located(record, subject.ledger, place, graph)
        sinks = sink_contexts(subject)
    except TidegateError as error:
        yield Finding(subject.name, "tables", "bad", error.what, error.help)
        return
    yield from _versions(subject, published)
    yield from _marks(subject, sinks, published)
    pending = [entry for entry in entries if not entry.aborted and entry.id not in published]
    yield from _staged(subject, sinks, pending, published)
    yield from _stores(subject, published)
    for node, context in sinks:
        yield from _check_leftover_attempts(subject, node, context, entries, repair)


def _stores(subject: Subject, published: dict[int, Published]) -> Iterator[Finding]:
    """Check once for each object store that only one writer can create a version of a table."""
    locations = []
    for _, location in sorted(_locations(subject, published).items()):
        if is_url(location.url):
            locations.append(location)
    stores = {store_of(location.url): location for location in locations}
    for store, location in stores.items():
        try:
            refuse_unsafe_store(location)
            yield Finding(subject.name, f"store {store}", "ok", f"{location.url}: creates each file once")
        except TidegateError as error:
            yield Finding(subject.name, f"store {store}", "bad", error.what, error.help)


# -- published checkpoints -----------------------------------------------------------------------------


def _versions(subject: Subject, published: dict[int, Published]) -> Iterator[Finding]:
    """Check that the log of each table still has the recorded commits."""
    recorded: dict[tuple[str, str], dict[int, tuple[int, str]]] = {}
    for id, record in published.items():
        for sink, table in _delta_tables(record).items():
            recorded.setdefault((sink, table.uri), {}).setdefault(table.version, (id, table.log_hash))
    for (sink, uri), versions in recorded.items():
        location = Location(uri, subject.settings.storage_options)
        yield _versions_of(subject, sink, location, versions)
        yield from check_log_checkpoints(subject, f"log of {sink}", location)


def _delta_tables(record: Published) -> dict[str, PublishedTable]:
    return {sink: table for sink, table in record.tables.items() if table.is_delta}


def _marks(
    subject: Subject, sinks: Sequence[tuple[SinkNode, SinkContext]], published: dict[int, Published]
) -> Iterator[Finding]:
    """Check that each target that is no Delta table has all checkpoints that the ledger records as published."""
    last: dict[str, PublishedTable] = {}
    for id in sorted(published):
        for sink, table in published[id].tables.items():
            if not table.is_delta:
                last[sink] = table
    declared = {node.name: (node, context) for node, context in sinks}
    for sink, table in last.items():
        if sink not in declared:
            problem, advice = "its sink is not in the code any more", ""
            if subject.pipeline is None:
                problem, advice = "only its sink can look", "give the pipeline as MODULE:pipeline"
            yield Finding(subject.name, f"target {sink}", "cannot tell", f"{table.uri}: {problem}", advice)
            continue
        node, context = declared[sink]
        try:
            node.sink.verify(table, context)
            detail = f"{table.uri} was given everything up to checkpoint {table.version}"
            yield Finding(subject.name, f"target {sink}", "ok", detail)
        except Corrupt as error:
            yield Finding(subject.name, f"target {sink}", "bad", error.what, error.help)
        except TidegateError as error:
            yield Finding(subject.name, f"target {sink}", "cannot tell", error.what, error.help)


def check_log_checkpoints(subject: Subject, check: str, location: Location) -> Iterator[Finding]:
    """Report truncated Delta log checkpoints, both those that block readers and those that were moved aside."""
    blocking = torn_checkpoints(location)
    if blocking:
        detail = f"{location.url}: {', '.join(blocking)} cannot be read, so other engines cannot open the table"
        advice = (
            "the next publication puts it aside, if the log's commits hold every row; if not, restore it from a copy"
        )
        yield Finding(subject.name, check, "bad", detail, advice)
    moved = find_torn_files(location)
    if moved:
        detail = (
            f"{location.url}: a crash, a power loss or a full disk tore Delta's own checkpoint of its log. It is done "
            f"without, no row is missing, and the next one takes its place; put aside: {', '.join(moved)}"
        )
        yield Finding(subject.name, check, "note", detail, "look after the disk and the machine; delete it if you like")


def _versions_of(subject: Subject, sink: str, location: Location, versions: dict[int, tuple[int, str]]) -> Finding:
    check, missing = f"table {sink}", []
    advice = "the table was dropped, made again or put back from a copy: put the right one back"
    try:
        for version, (id, log_hash) in sorted(versions.items()):
            commit = read_commit(location, version)
            if commit is None:
                missing.append(version)
            elif commit.sha != log_hash:
                wrong = f"{location.url} version {version} is not the commit that checkpoint {id} published"
                return Finding(subject.name, check, "bad", wrong, advice)
    except TidegateError as error:
        return Finding(subject.name, check, "cannot tell", error.what, error.help)
    if missing and max(versions) in missing and open_table(location) is None:
        last = max(versions)
        gone = deleted_table_error(sink, location.url, versions[last][0], last, subject.ledger.settled() or None)
        return Finding(subject.name, check, "bad", gone.what, gone.help)
    if missing and max(versions) in missing:
        return Finding(subject.name, check, "bad", f"{location.url} has no version {max(versions)} any more", advice)
    if missing:
        detail = f"{location.url}: the log's files of {len(missing)} older versions are gone (cleaned up)"
        return Finding(subject.name, check, "note", detail)
    return Finding(subject.name, check, "ok", f"{len(versions)} versions of {location.url} are as published")


# -- pending checkpoints -------------------------------------------------------------------------------


def _staged(
    subject: Subject,
    sinks: Sequence[tuple[SinkNode, SinkContext]],
    pending: Sequence[Entry],
    published: dict[int, Published],
) -> Iterator[Finding]:
    """Check that all files named by acks of undecided or unpublished checkpoints exist."""
    if not pending:
        return
    locations = _locations(subject, published)
    declared = {node.name: (node, context) for node, context in sinks}
    for entry in pending:
        if not is_still_retained(subject.ledger, entry.id):
            continue
        payloads = []
        for acked in entry.acks.values():
            for item in acked.ack.sinks.items():
                payloads.append(item)
        for sink, payload in payloads:
            check = f"staged for {sink} in checkpoint {entry.id}"
            location = locations.get(sink)
            if location is None and sink not in declared:
                advice = "give the pipeline as MODULE:pipeline"
                yield Finding(subject.name, check, "cannot tell", "where the files lie is not recorded yet", advice)
                continue
            try:
                committable = subject.ledger.unpack(payload)
                files = _files(sink, committable)
                if location is not None:
                    lost = missing_files(location, files)
                else:
                    node, context = declared[sink]
                    lost = node.sink.missing_files([committable], context)
            except TidegateError as error:
                if is_still_retained(subject.ledger, entry.id):
                    yield Finding(subject.name, check, "bad", error.what, error.help)
                continue
            if lost and is_still_retained(subject.ledger, entry.id):
                detail = f"{len(lost)} of {len(files)} files are gone or changed, first {lost[0]}"
                help = "put them back: a VACUUM or a clean-up may have removed them"
                yield Finding(subject.name, check, "bad", detail, help)
            else:
                yield Finding(subject.name, check, "ok", f"{len(files)} files, not published yet")


def _locations(subject: Subject, published: dict[int, Published]) -> dict[str, Location]:
    """Return where each sink stages files: as its code says, or next to the Delta table that was published last."""
    options = subject.settings.storage_options
    locations: dict[str, Location] = {}
    for id in sorted(published):
        for name, table in _delta_tables(published[id]).items():
            locations[name] = Location(table.uri, options)
    for node, context in sink_contexts(subject):
        delta_table = node.sink.delta_table(context)
        if isinstance(node.sink, TransactionalSink):
            locations[node.name] = node.sink.staging_folder(context)
        elif delta_table is not None:
            locations[node.name] = delta_table
        elif node.sink.staging_folder(context) is not None:
            locations[node.name] = Location(node.sink.target(context.place), options)
    return locations


def _files(sink: str, committable: Json) -> list[StagedFile]:
    if sink.startswith(STATE):
        return [part.file for part in typed.convert(committable, StateTable).files]
    files = []
    for part in ("files", "deletes", "removed"):
        for file in committable.get(part, []):
            files.append(file)
    return [typed.convert(file, StagedFile) for file in files]


# -- files of aborted checkpoints ----------------------------------------------------------------------


def uncounted_attempts(entry: Entry, node: SinkNode, context: SinkContext, counting: Container[str]) -> list[str]:
    """Return the attempts of an entry that staged files for a sink, but do not count."""
    attempts = filter(entry.owns, node.sink.attempts(entry.id, context))
    return [attempt for attempt in attempts if attempt not in counting]


def _check_leftover_attempts(
    subject: Subject, node: SinkNode, context: SinkContext, entries: Sequence[Entry], repair: bool
) -> Iterator[Finding]:
    """Check for attempts that staged files, but do not count. Those of aborted checkpoints may be deleted."""
    check = f"left over for {node.name}"
    dead: list[Staging] = []
    lost: list[Staging] = []
    try:
        for entry in entries:
            if not entry.aborted:
                counting = {acked.ack.attempt for acked in entry.acks.values()}
            else:
                counting = set()
            counting -= superseded_attempts(subject.ledger, entry)
            attempts = uncounted_attempts(entry, node, context, counting)
            if entry.aborted:
                for attempt in attempts:
                    dead.append(Staging(entry.id, attempt))
            elif entry.completed:
                for attempt in attempts:
                    lost.append(Staging(entry.id, attempt))
        if repair:
            for id in {staging.checkpoint for staging in dead}:
                subject.ledger.sync_decision(id)  # W2: otherwise a power loss could undo the abort
            for staging in dead:
                node.sink.discard(context, staging)
    except TidegateError as error:
        yield Finding(subject.name, check, "cannot tell", error.what, error.help)
        return
    if dead and not repair:
        detail = f"{len(dead)} attempts of aborted checkpoints {_ids(dead)}"
        yield Finding(subject.name, check, "note", detail, "harmless; --repair removes them")
    elif dead:
        yield Finding(subject.name, check, "ok", f"removed {len(dead)} attempts of aborted checkpoints {_ids(dead)}")
    if lost:
        detail = f"of {len(lost)} attempts of completed checkpoints {_ids(lost)}; they go when those are retired"
        yield Finding(subject.name, f"files that lost for {node.name}", "ok", detail)
    if not dead:
        yield Finding(subject.name, check, "ok", "nothing")


def _ids(stagings: list[Staging]) -> str:
    return ", ".join(map(str, sorted({staging.checkpoint for staging in stagings})))
