"""Reads Parquet files with columns that the schema lacks, or of another type, and keeps their values beside each row.

The footers show which columns a file has, so nothing is read twice. Files with the same further columns are read
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.connectors.files.folder import Folder
from tidegate.connectors.files.formats.parquet_types import fits
from tidegate.connectors.files.reading import FileOptions, option_text
from tidegate.connectors.schema.ddl import Column, parse_ddl
from tidegate.connectors.schema.drift import MAX_KNOWN_COLUMNS, Survey, common_type, rescued_json
from tidegate.connectors.schema.widening import wider_type
from tidegate.errors import Invalid
from tidegate.records.names import quoted
from tidegate.records.records import Drift, FoundColumn
from tidegate.spark.storage.exact_files import escaped, exact_reader, parquet_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ParquetOptions", "read_rescuing_parquet", "survey_parquet"]

Further = tuple[tuple[str, str], ...]
"""The names and types of a file's columns that are not read as columns of the schema."""


class ParquetOptions(FileOptions, Protocol):
    """The arguments of a source of Parquet files."""

    @property
    def evolved_columns(self) -> frozenset[str]: ...


def survey_parquet(source: ParquetOptions, folder: Folder, names: list[str]) -> Survey:
    """Return which columns of these files the schema lacks, and which are of another type."""
    found: dict[str, FoundColumn] = {}
    columns = {column.name.lower(): column for column in parse_ddl(source.schema)}
    records, is_clean = 0, True
    for name in sorted(names):
        further, rows = _further_columns(source, folder, name)
        records += rows if further else 0
        is_clean = is_clean and not further
        for spelled, kind in further:
            column = columns.get(spelled.lower())
            path = column.name if column is not None else spelled
            if column is not None and kind == "void":
                continue  # it has only nulls
            known, wider = found.get(path), ""
            if column is not None and source.schema_policy.on_type == "widen":
                wider = known.wider if known is not None else ""
                wider = wider_type(wider or column.type, kind) or wider
            found[path] = FoundColumn(
                path=path,
                kind="new" if column is None else "type",
                type=kind if known is None else common_type(known.type, kind),
                records=rows + (known.records if known is not None else 0),
                file=name if known is None else known.file,
                wider=wider,
            )
    if not found:
        return Survey(None, is_clean)
    paths = sorted(found)
    more = max(len(paths) - MAX_KNOWN_COLUMNS, 0)
    drift = Drift(found=[found[path] for path in paths[:MAX_KNOWN_COLUMNS]], records=records, more=more)
    return Survey(drift, is_clean=False)


def read_rescuing_parquet(spark: SparkSession, source: ParquetOptions, folder: Folder, names: list[str]) -> DataFrame:
    """Return the rows of these files, lazily, with the values of further columns in the rescue column."""
    files: dict[Further, list[str]] = {}
    for name in names:
        further, _ = _further_columns(source, folder, name)
        files.setdefault(further, []).append(folder.full(name))
    columns = parse_ddl(source.schema)
    frame: DataFrame | None = None
    for further, paths in files.items():
        rows = _rows(spark, source, paths, columns, dict(further))
        frame = rows if frame is None else frame.unionByName(rows)
    assert frame is not None
    return frame


def _rows(
    spark: SparkSession, source: ParquetOptions, paths: list[str], columns: list[Column], further: Mapping[str, str]
) -> DataFrame:
    """Return the rows of files with the same further columns."""
    lowered = {name.lower() for name in further}
    read = [column for column in columns if column.name.lower() not in lowered]
    schema = ", ".join(column.ddl for column in [*read, *(Column(name, kind) for name, kind in further.items())])
    options = {key: option_text(value) for key, value in source.options.items()}
    if options:
        frame = exact_reader(spark, paths).options(**options).schema(schema).format("parquet").load(escaped(paths))
    else:
        frame = parquet_files(spark, paths, schema)
    selected = [
        quoted(column.name) if column in read else f"CAST(NULL AS {column.type}) AS {quoted(column.name)}"
        for column in columns
    ]
    rescued = "CAST(NULL AS string)"
    if further:
        rescued = rescued_json([quoted(name) for name in further])
    return frame.selectExpr(*selected, f"{rescued} AS {quoted(source.schema_policy.rescue_column)}")


def _further_columns(source: ParquetOptions, folder: Folder, name: str) -> tuple[Further, int]:
    """Return a file's columns that the schema lacks, or that do not fit their column, and its number of rows."""
    import pyarrow.parquet

    columns = {column.name.lower(): column for column in parse_ddl(source.schema)}
    with folder.open(name) as stream, pyarrow.parquet.ParquetFile(stream) as file:
        rows, fields = file.metadata.num_rows, list(file.schema_arrow)
    further = []
    for field in fields:
        column = columns.get(field.name.lower())
        if column is None:
            is_further = source.schema_policy.rescues_keys
        else:
            may_differ = source.schema_policy.rescues_types or column.name in source.evolved_columns
            is_further = may_differ and not fits(field.type, column.type)
        if is_further:
            further.append((field.name, _spark_type(field, name, folder)))
    return tuple(further), rows


def _spark_type(field: Any, name: str, folder: Folder) -> str:
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import from_arrow_type

    try:
        if str(field.type).startswith("timestamp[ns"):
            raise PySparkTypeError("nanoseconds")
        return str(from_arrow_type(field.type).simpleString())
    except PySparkTypeError:
        raise Invalid(
            f"column {field.name!r} of file {name!r} in {folder.url} is {field.type}, which Spark cannot read",
            expected="columns that can be kept in the rescue column",
            help='convert it where the files are written; or drop such columns, with on_new_column="ignore"',
            reason="SCHEMA_MISMATCH",
        ) from None
