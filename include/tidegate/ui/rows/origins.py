"""Where a value that broke a rule has come from: the file that the checkpoint has read, and the line in it.

It is looked for in the files that the plan names, as they lie there, for a bounded time: lines of JSON, and CSV with a
header. A column that a stage has computed, a file of another form or a large one: then it is not known, and is not
guessed.
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
"""For all rules of a gate together. It is looked for once."""
_MOST_FILES, _MOST_BYTES = 100, 8 << 20
_KEPT = 200
Origin = tuple[str, int]
"""A file, and the number of the line, from 1."""

_found: OrderedDict[Any, dict[str, Origin]] = OrderedDict()
_lock = threading.Lock()


def planned_files(pipeline: PipelineRef, ledger: Ledger, entry: Entry, gate: str) -> dict[str, tuple[str, list[str]]]:
    """Return by source before the gate its folder, and the files that the checkpoint reads of it; {}: it reads no
    files, or its records are gone."""
    found: dict[str, tuple[str, list[str]]] = {}
    for name in sorted(_sources_before(pipeline, gate)):
        part = entry.plan.sources.get(name)
        splits = ledger.unpack(part.splits) if part is not None else None
        files = splits.get("files") if isinstance(splits, dict) else None
        if isinstance(splits, dict) and isinstance(splits.get("folder"), str) and isinstance(files, list):
            found[name] = splits["folder"], [str(file["name"]) for file in files if isinstance(file, dict)]
    return found


def _sources_before(pipeline: PipelineRef, gate: str) -> set[str]:
    parts = {part.name: part for part in pipeline.card.parts if part.role != "sink"}
    left, seen = [gate], set[str]()
    while left:
        name = left.pop()
        if name in seen or name not in parts:
            continue
        seen.add(name)
        left += parts[name].inputs
    return {name for name in seen if parts[name].role == "source"}


def origins(
    pipeline: PipelineRef,
    files: Mapping[str, tuple[str, list[str]]],
    values: Mapping[str, tuple[str, str]],
    key: object,
) -> dict[str, Origin]:
    """Return for each rule where the first row with its value is, as far as that is found.

    values: by rule a column, and one of the values in it. key: what this is about; it is looked for once.
    """
    with _lock:
        if key in _found:
            return _found[key]
    found = _search(pipeline, files, values, seams.monotonic() + MAX_SEARCH_S)
    with _lock:
        _found[key] = found
        while len(_found) > _KEPT:
            _found.popitem(last=False)
    return found


def _search(
    pipeline: PipelineRef,
    files: Mapping[str, tuple[str, list[str]]],
    values: Mapping[str, tuple[str, str]],
    until: float,
) -> dict[str, Origin]:
    found: dict[str, Origin] = {}
    place = Place(pipeline.data, pipeline.options)
    for path, names in files.values():
        folder = open_folder(place, path)
        for name in names[:_MOST_FILES]:
            left = {rule: asked for rule, asked in values.items() if rule not in found}
            if not left or seams.monotonic() > until:
                return found
            try:
                found |= _in_file(folder, name, left)
            except (OSError, ValueError, TidegateError, csv.Error):
                continue  # it is gone, or of another form: then it is not known
    return found


def _in_file(folder: Folder, name: str, values: Mapping[str, tuple[str, str]]) -> dict[str, Origin]:
    found: dict[str, Origin] = {}
    with folder.open(name) as opened:
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        return found
    for number, row in _rows(name, data.decode("utf-8")):
        for rule, (column, value) in values.items():
            if rule not in found and column in row and _is_same_value(row[column], value):
                found[rule] = folder.full(name), number
    return found


def _rows(name: str, text: str) -> Iterator[tuple[int, Json]]:
    """Yield the rows with their lines, numbers as they are written."""
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
            continue  # a line that is malformed is no row
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
