"""Where tables lie now that were published earlier: a project may have been moved, or copied, since then."""

from __future__ import annotations

import contextlib
import os.path
from collections.abc import Iterator, Mapping

import msgspec

from tidegate.delta import Location, locate
from tidegate.delta.log.files import read_commit
from tidegate.errors import TidegateError
from tidegate.gates.quarantine.table import QUARANTINE, QuarantineSink
from tidegate.ledger.ledger import Ledger
from tidegate.pipeline.graph.graph import Graph
from tidegate.records.place import Place, is_url
from tidegate.records.records import Json, Published, PublishedTable
from tidegate.state.table import STATE, state_sink

__all__ = ["located", "relative_paths", "tables_now"]


def relative_paths(graph: Graph) -> dict[str, str]:
    """By sink, the path of its table, where that starts from the setting `data`: such tables move with the project."""
    paths = ((name, sinking.sink.relative_path()) for name, sinking in graph.sinks.items())
    return {name: path for name, path in paths if path is not None}


def located(published: Published, ledger: Ledger, place: Place, graph: Graph | None = None) -> Published:
    """The record with the tables' places as of now.

    Of a project that lies elsewhere than when the record was written, what lies at the old place is never looked at: it
    may be a copy that somebody left, or has gone on with. graph: the pipeline's code, if it is known; of records that
    do not say where the project lay, only the code tells where else a table can be.
    """
    tables = {name: _located(name, published, ledger, place, graph) for name in published.tables}
    return msgspec.structs.replace(published, tables=tables)


def tables_now(
    id: int, tables: Mapping[str, Json], ledger: Ledger, place: Place, graph: Graph | None = None
) -> dict[str, Json]:
    """What a checkpoint's records, or its row of the history, say of tables: each with its place as of now.

    Of one whose records are retired, the last one that is published tells, if it lay at the same place.
    """
    with contextlib.suppress(TidegateError):
        told = ledger.published(id) or ledger.published(ledger.settled())
        if told is not None:
            now = located(told, ledger, place, graph).tables
            same = {name for name, at in tables.items() if name in now and told.tables[name].uri == at["uri"]}
            return {name: at | {"uri": now[name].uri} if name in same else at for name, at in tables.items()}
    return dict(tables)


def _located(name: str, published: Published, ledger: Ledger, place: Place, graph: Graph | None) -> PublishedTable:
    table = published.tables[name]
    if name.startswith(STATE):
        return msgspec.structs.replace(table, uri=f"{ledger.home}/{state_sink(name).folder}")
    if name.startswith(QUARANTINE):
        return msgspec.structs.replace(table, uri=QuarantineSink(name.removeprefix(QUARANTINE)).path(ledger.home))
    places = list(dict.fromkeys(_places(name, published, ledger, place, graph)))
    found = next((uri for uri in places if len(places) > 1 and _is_there(table, Location(uri, place.options))), None)
    return msgspec.structs.replace(table, uri=found or places[0])


def _places(name: str, published: Published, ledger: Ledger, place: Place, graph: Graph | None) -> Iterator[str]:
    """Where a sink's table may lie, the likeliest first."""
    table, home, path = published.tables[name], published.home, published.paths.get(name)
    if home is None or home == ledger.home or path is None:
        yield table.uri
    if path is not None:
        yield locate(place, path).url
        if home is not None and not any(map(is_url, (home, ledger.home, table.uri))):
            # The code may set `data`, which nobody knows who has no more than the pipeline's name.
            yield os.path.normpath(os.path.join(ledger.home, os.path.relpath(table.uri, home)))
    elif home is None and graph is not None and name in graph.sinks:
        yield graph.sinks[name].sink.target(place)


def _is_there(table: PublishedTable, location: Location) -> bool:
    """Whether this is the table: the version that was published is the very commit."""
    try:
        commit = read_commit(location, table.version)
    except TidegateError:
        return False
    return commit is not None and commit.sha == table.log_hash
