"""Finds the origin of a value that broke a rule: the file that the checkpoint read, and the line in it.

It searches the plan's files for a bounded time: JSON lines, and CSV with a header. For a column that a stage has
computed, or a large file or one in another format, the origin stays unknown.
"""

from __future__ import annotations

import csv
import io
import json
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from tidegate import seams
from tidegate.connectors.files.folder import Folder, open_folder
from tidegate.errors import TidegateError
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry
from tidegate.records.place import Place
from tidegate.records.records import Json
from tidegate.ui.pipelines import PipelineRef

__all__ = ["Origin", "origins", "planned_files"]

MAX_SEARCH_S = 0.3
"""The time limit for all rules of a gate together. Results are cached."""
_MAX_FILES, _MAX_BYTES = 100, 8 << 20
_MAX_CACHED = 200
Origin = tuple[str, int]
"""A file, and a line number, from 1."""

_cache: OrderedDict[Any, dict[str, Origin]] = OrderedDict()
_lock = threading.Lock()


def planned_files(pipeline: PipelineRef, ledger: Ledger, entry: Entry, gate: str) -> dict[str, tuple[str, list[str]]]:
    """Return, for each source of files upstream of the gate, its folder and the files that the checkpoint reads.

    Empty if the records are gone.
    """
    planned: dict[str, tuple[str, list[str]]] = {}
    for name in sorted(_upstream_sources(pipeline, gate)):
        part = entry.plan.sources.get(name)
        splits = ledger.unpack(part.splits) if part is not None else None
        files = splits.get("files") if isinstance(splits, dict) else None
        if isinstance(splits, dict) and isinstance(splits.get("folder"), str) and isinstance(files, list):
            planned[name] = splits["folder"], [str(file["name"]) for file in files if isinstance(file, dict)]
    return planned


def _upstream_sources(pipeline: PipelineRef, gate: str) -> set[str]:
    parts = {part.name: part for part in pipeline.card.parts if part.role != "sink"}
    to_visit, visited = [gate], set[str]()
    while to_visit:
        name = to_visit.pop()
        if name in visited or name not in parts:
            continue
        visited.add(name)
        to_visit += parts[name].inputs
    return {name for name in visited if parts[name].role == "source"}


def origins(
    pipeline: PipelineRef,
    files: Mapping[str, tuple[str, list[str]]],
    values: Mapping[str, tuple[str, str]],
    key: object,
) -> dict[str, Origin]:
    """Return for each rule the place of the first row with its value, if it can be found.

    values: for each rule a column, and a value in it. key: identifies the search, so that its result is cached.
    """
    with _lock:
        if key in _cache:
            return _cache[key]
    places = _search(pipeline, files, values, seams.monotonic() + MAX_SEARCH_S)
    with _lock:
        _cache[key] = places
        while len(_cache) > _MAX_CACHED:
            _cache.popitem(last=False)
    return places


def _search(
    pipeline: PipelineRef,
    files: Mapping[str, tuple[str, list[str]]],
    values: Mapping[str, tuple[str, str]],
    until: float,
) -> dict[str, Origin]:
    places: dict[str, Origin] = {}
    place = Place(pipeline.data, pipeline.options)
    for path, names in files.values():
        folder = open_folder(place, path)
        for name in names[:_MAX_FILES]:
            remaining = {rule: value for rule, value in values.items() if rule not in places}
            if not remaining or seams.monotonic() > until:
                return places
            try:
                places |= _search_file(folder, name, remaining)
            except (OSError, ValueError, TidegateError, csv.Error):
                continue  # the file is gone, or in another format
    return places


def _search_file(folder: Folder, name: str, values: Mapping[str, tuple[str, str]]) -> dict[str, Origin]:
    places: dict[str, Origin] = {}
    with folder.open(name) as opened:
        data = opened.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        return places
    for number, row in _rows(name, data.decode("utf-8")):
        for rule, (column, value) in values.items():
            if rule not in places and column in row and _is_same_value(row[column], value):
                places[rule] = folder.full(name), number
    return places


def _rows(name: str, text: str) -> Iterator[tuple[int, Json]]:
    """Yield the rows with their line numbers. Numbers in JSON stay as written."""
    if name.lower().endswith((".json", ".jsonl", ".ndjson")):
        yield from _json_rows(text.splitlines())
    elif name.lower().endswith(".csv"):
        reader = csv.DictReader(io.StringIO(text, newline=""))
        for row in reader:
            yield reader.line_num, row


def _json_rows(lines: Iterable[str]) -> Iterator[tuple[int, Json]]:
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line, parse_float=str, parse_int=str)
        except ValueError:
            continue  # a malformed line is not a row
        if isinstance(row, dict):
            yield number, row


def _is_same_value(written: Any, value: str) -> bool:
    if written is None or isinstance(written, dict | list):
        return False
    text = str(written).lower() if isinstance(written, bool) else str(written)
    if text == value:
        return True
    try:
        return Decimal(text) == Decimal(value)
    except InvalidOperation:
        return False
