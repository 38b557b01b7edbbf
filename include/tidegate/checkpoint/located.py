"""Find the present location of published tables: the project may have been moved or copied since."""

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
    """Return, by sink, each table's path if it is relative to the setting `data`: such tables move with the project."""
    paths = {}
    for name, sinking in graph.sinks.items():
        path = sinking.sink.relative_path()
        if path is not None:
            paths[name] = path
    return paths


def located(published: Published, ledger: Ledger, place: Place, graph: Graph | None = None) -> Published:
    """Return the record with the present locations of the tables.

    If the project has moved since the record was written, the old place is never read: it may hold a copy that is
    stale, or that another project uses. graph: the pipeline's code, if known. For records without the project's folder,
    only the code shows where else a table can be.
    """
    tables = {}
    for name in published.tables:
        tables[name] = _located(name, published, ledger, place, graph)
    return msgspec.structs.replace(published, tables=tables)


def tables_now(
    id: int, tables: Mapping[str, Json], ledger: Ledger, place: Place, graph: Graph | None = None
) -> dict[str, Json]:
    """Return the tables of a checkpoint, as in its records or its row of the history, with their present locations.

    If its records are retired, the last published checkpoint shows the location of each table that was at the same one.
    """
    present = dict(tables)
    with contextlib.suppress(TidegateError):
        published = ledger.published(id) or ledger.published(ledger.settled())
        if published is not None:
            for name, table in located(published, ledger, place, graph).tables.items():
                if name in tables and published.tables[name].uri == tables[name]["uri"]:
                    present[name] = tables[name] | {"uri": table.uri}
    return present


def _located(name: str, published: Published, ledger: Ledger, place: Place, graph: Graph | None) -> PublishedTable:
    table = published.tables[name]
    if name.startswith(STATE):
        return msgspec.structs.replace(table, uri=f"{ledger.home}/{state_sink(name).folder}")
    if name.startswith(QUARANTINE):
        return msgspec.structs.replace(table, uri=QuarantineSink(name.removeprefix(QUARANTINE)).path(ledger.home))
    if not table.is_delta:  # a database or a broker does not move with the project; its sink says where it is
        declared = graph.sinks.get(name) if graph is not None else None
        if declared is None:
            return table
        return msgspec.structs.replace(table, uri=declared.sink.target(place))
    uris = list(dict.fromkeys(_places(name, published, ledger, place, graph)))
    if len(uris) > 1:
        for uri in uris:
            if _is_same_table(table, Location(uri, place.options)):
                return msgspec.structs.replace(table, uri=uri)
    return msgspec.structs.replace(table, uri=uris[0])


def _places(name: str, published: Published, ledger: Ledger, place: Place, graph: Graph | None) -> Iterator[str]:
    """Yield the possible locations of a sink's table, the likeliest first."""
    table, home, path = published.tables[name], published.home, published.paths.get(name)
    if home is None or home == ledger.home or path is None:
        yield table.uri
    if path is not None:
        yield locate(place, path).url
        if home is not None and not any(map(is_url, (home, ledger.home, table.uri))):
            # The code may set `data`, which a caller that has only the pipeline's name does not know.
            yield os.path.normpath(os.path.join(ledger.home, os.path.relpath(table.uri, home)))
    elif home is None and graph is not None and name in graph.sinks:
        yield graph.sinks[name].sink.target(place)


def _is_same_table(table: PublishedTable, location: Location) -> bool:
    """Return whether this is the table: its commit of the published version has the recorded hash."""
    try:
        commit = read_commit(location, table.version)
    except TidegateError:
        return False
    return commit is not None and commit.sha == table.log_hash
