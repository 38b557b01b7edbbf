"""Everybody who reads what a sink has written: each must see the same rows."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.values.exact import Row, exact_rows, exact_rows_of_json, in_utf8
from tests.values.inputs import Input
from tests.values.places import Places
from tidegate import offline
from tidegate.cli.main import main
from tidegate.errors import Invalid
from tidegate.testing import RunningPipeline

__all__ = ["Reading", "readers_of", "set_aside", "states", "wanted_by"]

LIMIT = 1000


@dataclass(frozen=True)
class Reading:
    """A sink that is read, and what must be found there."""

    running: RunningPipeline
    spark: Any
    sink: str
    path: Path
    schema: pa.Schema
    """Of what is wanted."""
    given: Input
    places: Places

    @property
    def table(self) -> str:
        """Its name in other systems."""
        return self.sink.replace("-", "_")

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def commanded(self, verb: str, *rest: str) -> Any:
        """The document of a command, which must not fail."""
        where = ("-D", f"root={self.running.settings.root}", "-D", f"data={self.running.settings.data}")
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            said = [*verb.split(), self.running.pipeline.name, *rest, *where]
            code = main([*said, "--limit", str(LIMIT), "--json"])
            assert code == 0, f"`tidegate {verb}` ends with {code}: {err.getvalue()}"
            with contextlib.redirect_stdout(io.StringIO()):
                code = main(said)
            assert code == 0, f"`tidegate {verb}` in words ends with {code}: {err.getvalue()}"
        return json.loads(out.getvalue())


Reader = Callable[[Reading], Counter[Row] | None]
"""The rows; None: it is known not to read such values."""


def _spark(it: Reading) -> Counter[Row]:
    return exact_rows(it.spark.read.format("delta").load(str(it.path)).toArrow(), it.columns)


def _delta_rs(it: Reading) -> Counter[Row]:
    return exact_rows(DeltaTable(str(it.path)).to_pyarrow_table(), it.columns)


def _offline(it: Reading) -> Counter[Row]:
    with mock.patch.dict(os.environ, _environment(it)):
        return exact_rows(offline.read_arrow(it.running.pipeline.name, it.sink), it.columns)


def _offline_by_spark(it: Reading) -> Counter[Row]:
    with mock.patch.dict(os.environ, _environment(it)):
        return exact_rows(offline.read(it.spark, it.running.pipeline.name, it.sink).toArrow(), it.columns)


def _environment(it: Reading) -> dict[str, str]:
    return {"TIDEGATE_ROOT": str(it.running.settings.root), "TIDEGATE_DATA": str(it.running.settings.data)}


def _cli(it: Reading) -> Counter[Row]:
    return exact_rows_of_json(it.commanded("read", it.sink)["rows"], it.schema, it.columns)


class _Known:
    """What the pages know of a pipeline."""

    def __init__(self, running: RunningPipeline) -> None:
        self.ledger = lambda: running.ledger
        self.options: dict[str, str] = {}
        self.data = str(running.settings.data)
        self.card: Any = self
        self.keys: dict[str, list[str]] = {}
        self.gates: list[str] = []
        self.by_interval = False


def _api(it: Reading) -> Counter[Row]:
    """As the pages get them; long values are cut there, so only their number is compared."""
    from tidegate.ui.rows import table_samples  # and with it Airflow

    known: Any = _Known(it.running)
    id = it.running.ledger.view().last_id
    found = table_samples.rows(known, id, it.sink, LIMIT)
    msgspec.json.encode(found)
    if id > 1:
        with contextlib.suppress(Invalid):  # the sink had no table then
            msgspec.json.encode(table_samples.changes(known, 1, id, it.sink, LIMIT))
    return Counter([("row",)] * len(found.rows))


def _duckdb(it: Reading) -> Counter[Row] | None:
    """Straight from the files."""
    import duckdb

    if any(edge.no_text or edge.unbounded for edge in it.given.column.edges) or "interval" in it.given.column.kind.name:
        return None  # it takes only UTF-8, and has a year that is the last one
    table = DeltaTable(str(it.path))
    if table.metadata().partition_columns:
        return None
    files = table.file_uris()
    if not files:
        return Counter()
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        return exact_rows(database.sql("SELECT * FROM read_parquet(?)", params=[files]).to_arrow_table(), it.columns)


# -- exports ---------------------------------------------------------------------------------------------------


def _files(it: Reading) -> Iterator[Path]:
    for path in sorted(it.path.rglob("*")):
        parts = path.relative_to(it.path).parts
        if path.is_file() and not any(part[0] in "_." and "=" not in part for part in parts):
            yield path


def _has_values_in_folders(it: Reading) -> bool:
    return any("=" in part for path in _files(it) for part in path.relative_to(it.path).parts[1:-1])


def _arrow(it: Reading) -> Counter[Row] | None:
    if _has_values_in_folders(it):
        return None
    return sum((exact_rows(pq.ParquetFile(path).read(), it.columns) for path in _files(it)), Counter())


def _json(it: Reading) -> Counter[Row] | None:
    if _has_values_in_folders(it):
        return None
    rows = [
        json.loads(line, parse_float=Decimal) for path in _files(it) for line in path.read_text().split("\n") if line
    ]
    assert all(set(row) >= set(it.columns) for row in rows), "a record lacks a column"
    return exact_rows_of_json(rows, it.schema, it.columns)


def _csv(it: Reading) -> Counter[Row] | None:
    """Python's reader takes null and empty text for the same."""
    if _has_values_in_folders(it):
        return None
    found: Counter[Row] = Counter()
    for path in _files(it):
        with path.open(newline="") as file:
            rows = [
                {name: _typed(text, it.schema.field(name).type) for name, text in row.items()}
                for row in csv.DictReader(file)
            ]
        found += exact_rows_of_json(rows, it.schema, it.columns)
    return found


def _typed(text: str, kind: Any) -> Any:
    if text == "":
        return None
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text]
    return int(text) if pa.types.is_integer(kind) else text


def _header(it: Reading) -> list[str]:
    """The columns of CSV files, in their order, and then those that are folders: Spark goes by their places."""
    for path in _files(it):
        with path.open(newline="") as file:
            named = next(csv.reader(file))
            return [*named, *(name for name in it.columns if name not in named)]
    return []


def _spark_files(format: str) -> Reader:
    def read(it: Reading) -> Counter[Row] | None:
        from pyspark.sql.pandas.types import from_arrow_schema

        if format == "csv" and any("\\r" in edge.sql for edge in it.given.column.edges):
            return None  # Spark's reader takes \r\n for \n, also in a text
        fields = from_arrow_schema(it.schema, prefer_timestamp_ntz=True)
        wanted = type(fields)(
            [fields[name] for name in _header(it) or fields.names] if format == "csv" else fields.fields
        )
        options = {"csv": {"header": "true", "escape": '"', "multiLine": "true"}}.get(format, {})
        reader = it.spark.read.options(**options).option("basePath", str(it.path))
        if format != "parquet" or _has_values_in_folders(it):
            reader = reader.schema(wanted)  # else the files have their own, which may be wider than Spark's answer's
        if not list(_files(it)):
            return Counter()
        return exact_rows(reader.format(format).load(str(it.path)).toArrow(), it.columns)

    return read


# -- other systems ---------------------------------------------------------------------------------------------


def _iceberg(it: Reading) -> Counter[Row]:
    return exact_rows(it.places.iceberg_rows(it.table), it.columns)


def _postgres(it: Reading) -> Counter[Row]:
    return exact_rows_of_json(it.places.postgres_rows(it.table, it.schema), it.schema, it.columns)


_TABLES: dict[str, Reader] = {
    "spark": _spark,
    "delta-rs": _delta_rs,
    "offline": _offline,
    "offline by spark": _offline_by_spark,
    "cli": _cli,
    "api": _api,
    "duckdb": _duckdb,
}
_OTHERS: dict[str, dict[str, Reader]] = {
    "parquet": {"python parquet": _arrow, "spark parquet": _spark_files("parquet")},
    "csv": {"python csv": _csv, "spark csv": _spark_files("csv")},
    "json": {"python json": _json, "spark json": _spark_files("json")},
    "iceberg": {"pyiceberg": _iceberg},
    "postgres": {"SQL": _postgres},
}


def readers_of(sink: str) -> dict[str, Reader]:
    """Who reads what a sink has written."""
    return _OTHERS.get(sink, _TABLES)


# -- what is wanted of them ------------------------------------------------------------------------------------


def wanted_by(reader: str, rows: Counter[Row]) -> Counter[Row]:
    """The rows in the form in which this reader shows them."""
    if reader == "api":
        return Counter([("row",)] * rows.total())
    if reader in ("cli", "python json"):
        return _changed(rows, in_utf8)
    if reader == "python csv":
        return _changed(rows, lambda value: None if value == ("text", b"") else value)
    return rows


def _changed(rows: Counter[Row], change: Callable[[Any], Any]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for row, count in rows.items():
        found[tuple(map(change, row))] += count
    return found


def set_aside(it: Reading, gate: str) -> int:
    """How many rows a gate has set aside."""
    document = it.commanded("quarantine show", gate)
    return len(document["rows"])


def states(it: Reading, operator: str) -> int:
    """How many keys a state has, as `tidegate state` and `offline.read_state` say."""
    document = it.commanded("state", operator)
    with mock.patch.dict(os.environ, _environment(it)):
        count = offline.read_state(it.spark, it.running.pipeline.name, operator).count()
    assert count == document["total"] == len(document["rows"]), "the command and the function differ"
    return int(count)
