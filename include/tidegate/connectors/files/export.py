"""A sink that adds rows to a folder as Parquet, CSV or JSON files, for tools that cannot read Delta."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from tidegate.connectors.declaring import column_problems
from tidegate.connectors.delta.sink.properties import path_problems
from tidegate.connectors.delta.sink.table import refuse_unsafe_store
from tidegate.connectors.files.export_folder import LINE, ExportedFile, ExportFolder, LastEntry, LogEntry
from tidegate.connectors.row_rules import DeclaredRules, RowRule, partition_rules
from tidegate.connectors.sink import SinkContext, Staging
from tidegate.connectors.transactional import StagedRows, TransactionalSink
from tidegate.connectors.valid_texts import columns_of_valid_text, invalid_text_condition, invalid_text_problem
from tidegate.delta import locate
from tidegate.delta.dividing import Divided, Division, not_divisible
from tidegate.delta.files.access import unavailable
from tidegate.delta.files.partitions import refuse_rows
from tidegate.errors import Invalid, Unavailable
from tidegate.records.names import listed, quoted
from tidegate.records.place import Place, is_relative, shared_uri
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["FileExport"]

_PARTITION_TYPES = ("string", "date", "boolean", "byte", "short", "integer", "long")
"""Types whose text in the name of a folder is read alike by all tools."""
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",  # by default, Spark truncates to milliseconds
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_CSV = _TIMES | {
    "escape": '"',  # double the quotes in texts, as every tool expects
    "ignoreLeadingWhiteSpace": "false",  # by default, Spark strips spaces
    "ignoreTrailingWhiteSpace": "false",
}
_JSON = _TIMES | {"ignoreNullFields": "false"}
_EXTENSIONS = {"parquet": "parquet", "csv": "csv", "json": "json"}


class FileExport(TransactionalSink):
    """Add the rows of each checkpoint as plain files, in a new folder per checkpoint.

        FileExport("exports/orders", format="csv", partition_by=["country"])

    This writes files such as

        exports/orders/checkpoint=00000042/country=DE/part-00000.csv
        exports/orders/_manifests/00000042.json

    The manifest lists the checkpoint's files, and is written once they are complete. On a local disk, the folder of a
    checkpoint appears with all of its files at once. In an object store the files appear one by one, so readers should
    start from the manifests. Rows are never removed, so a rollback needs --keep or --leave.

    path: the folder, relative to the setting `data`, or a URL.
    format: "parquet", "csv" or "json" (one object per line).
    partition_by: columns whose values become names of folders instead of being in the files. Empty text gets the same
        folder as null, as readers of such folders expect.
    header: whether CSV files begin with the names of the columns.
    compression: "none" or "gzip", for CSV and JSON.
    options: options of Spark's to_csv or to_json, such as {"sep": ";"}. By default, timestamps are written in UTC with
        microseconds. In CSV, null is written as nothing, and empty text as "". If a CSV file has a single text column
        that contains null, set {"nullValue": "NULL"} or similar, because many tools skip empty lines.
    take_over: export to a folder that another pipeline has used. Its files stay. If it had a checkpoint of the same
        number, the new folder has a suffix, such as checkpoint=00000042-7.
    """

    kind: ClassVar[str] = "files"
    counts_input_rows: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        *,
        format: Literal["parquet", "csv", "json"] = "parquet",
        partition_by: Sequence[str] = (),
        header: bool = True,
        compression: Literal["none", "gzip"] = "none",
        options: dict[str, str] | None = None,
        take_over: bool = False,
    ) -> None:
        self.path = path
        self.format = format
        self.partition_by = tuple(listed(partition_by))
        self.header = header
        self.compression = compression
        self.options = dict(options or {})
        self.take_over = take_over

    def describe(self) -> Json:
        return {
            "kind": self.kind,
            "path": self.path,
            "format": self.format,
            "partition_by": list(self.partition_by),
            "header": self.header,
            "compression": self.compression,
            "options": self.options,
        }

    def problems(self) -> list[str]:
        problems = path_problems(self.path) + column_problems("partition_by", self.partition_by)
        for argument, value, choices in (
            ("format", self.format, tuple(_EXTENSIONS)),
            ("compression", self.compression, ("none", "gzip")),
            ("header", self.header, (True, False)),
        ):
            if value not in choices:
                problems.append(f"{argument} is {value!r}; it must be {' or '.join(map(repr, choices))}")
        if self.format == "parquet" and (self.compression != "none" or self.options):
            problems.append("compression and options are for CSV and JSON: Parquet files are always compressed")
        if any(not isinstance(text, str) for text in (*self.options, *self.options.values())):
            problems.append(f"options is {self.options!r}; write names and values as text")
        return problems

    def target(self, place: Place) -> str:
        return locate(place, self.path).url

    def shared_uri(self, place: Place) -> str:
        """See Sink."""
        return shared_uri(self.target(place))

    def relative_path(self) -> str | None:
        return self.path if is_relative(self.path) else None

    def check(self, context: SinkContext) -> None:
        if self._latest(context) is None:
            refuse_unsafe_store(locate(context.place, self.path))

    def test_store(self, context: SinkContext) -> None:
        refuse_unsafe_store(locate(context.place, self.path))

    def output_problems(self, schema: Json, context: SinkContext) -> list[str]:
        types = {field["name"]: field["type"] for field in schema["fields"]}
        problems = []
        for name in self.partition_by:
            if name not in types:
                problems.append(f"partition column {name!r} is not in the output ({', '.join(types)})")
            elif types[name] not in _PARTITION_TYPES:
                problems.append(
                    f"partition column {name!r} is {_type_name(types[name])}, not one of {', '.join(_PARTITION_TYPES)}"
                )
        if self.format != "parquet" and LINE in self.partition_by:
            problems.append(f"partition column {LINE!r} is a name that the sink reserves")
        if not set(types) - set(self.partition_by):
            problems.append("all columns are partition columns, so none is left for the files")
        if self.format == "csv":
            for name, data_type in types.items():
                if not isinstance(data_type, str) or data_type in ("binary", "variant"):
                    problems.append(
                        f"column {name!r} is {_type_name(data_type)}, which CSV does not support: convert it to text, "
                        "or use JSON"
                    )
        return problems

    def row_rules(self, columns: Json, declared: Json | None) -> DeclaredRules:
        kinds = {field["name"]: field["type"] for field in columns["fields"]}
        rules = partition_rules(columns, self.partition_by)
        names = [name for name in kinds if name not in self.partition_by]
        for name in names if self.format != "parquet" else ():
            if invalid := invalid_text_condition(quoted(name), kinds[name]):
                rules.append(RowRule(f"{name} encoding", invalid, invalid_text_problem(name)))
        if self._refuses_null(names, kinds):
            rules.append(RowRule(f"{names[0]} not null", f"{quoted(names[0])} IS NULL", _null_problem(names[0])))
        return DeclaredRules(tuple(rules))

    def _refuses_null(self, names: Sequence[str], kinds: Mapping[str, Any]) -> bool:
        """Return whether a null would be read as empty text: in a CSV file of a single column."""
        if self.format != "csv" or len(names) != 1 or self.options.get("nullValue"):
            return False
        return str(kinds[names[0]]).startswith(("string", "varchar", "char"))

    def staged_form(self, frame: DataFrame, context: SinkContext) -> DataFrame:
        """For CSV and JSON, return each row's line as a column: Spark formats them."""
        if self.format == "parquet":
            return frame
        from pyspark.sql import functions as F

        columns = self._file_columns(frame)
        if self.format == "csv":
            line = F.to_csv(F.struct(*columns_of_valid_text(frame, columns)), _CSV | self.options)
            if len(columns) == 1:  # for a null, Spark fails, and tools skip an empty line
                line = self._single_column_line(frame, columns[0], line)
        else:
            line = F.to_json(F.struct(*columns_of_valid_text(frame, columns)), _JSON | self.options)
        return frame.select(line.alias(LINE), *map(quoted, self.partition_by))

    def divide(self, committable: Json, division: Division, context: SinkContext, staging: Staging) -> Divided:
        raise not_divisible(context.sink, "a folder takes all files of a checkpoint or none, and refuses no single row")

    def _single_column_line(self, frame: DataFrame, name: str, line: Column) -> Column:
        """Return the lines of a file with a single column, in which a null is not an empty line."""
        from pyspark.sql import functions as F

        is_null, null_text = F.col(quoted(name)).isNull(), self.options.get("nullValue")
        if null_text:
            return F.when(is_null, F.lit(null_text)).otherwise(line)
        if frame.schema[name].dataType.typeName() in ("string", "varchar", "char"):
            return refuse_rows(line, is_null, _null_problem(name))
        return F.when(is_null, F.lit('""')).otherwise(line)

    def _file_columns(self, frame: DataFrame) -> list[str]:
        return [name for name in frame.columns if name not in self.partition_by]

    def staged_partitions(self) -> Sequence[str]:
        return self.partition_by

    def notes(self, frame: DataFrame) -> Json:
        """For CSV, note the header line."""
        if self.format != "csv" or not self.header:
            return {}
        separator = self.options.get("sep") or self.options.get("delimiter") or ","
        return {"header": separator.join(_csv_name(name, separator) for name in self._file_columns(frame))}

    def last(self, context: SinkContext) -> int | None:
        with self._storage_errors(context):
            return self._last(context)

    def _last(self, context: SinkContext) -> int | None:
        latest = self._latest(context)
        if latest is None or latest.entry.app != context.app_id:
            return None
        if self._folder(context).is_finished(latest.entry):
            return latest.entry.checkpoint
        return latest.entry.after

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        with self._storage_errors(context):
            return self._load(rows, context)

    @contextlib.contextmanager
    def _storage_errors(self, context: SinkContext) -> Iterator[None]:
        """Raise storage errors as Unavailable: the checkpoint is decided, so publishing waits until they are fixed."""
        try:
            yield
        except OSError as error:
            raise unavailable(self.target(context.place), error) from error
        except Invalid as error:
            if error.reason != "NO_ACCESS":
                raise
            raise Unavailable(
                f"sink {context.sink}: {error.what}",
                expected="a folder that this user may read and write",
                help="change its owner or mode; the next attempt tries again",
                reason="STORAGE",
            ) from error

    def _load(self, rows: StagedRows, context: SinkContext) -> bool:
        folder, staged = self._folder(context), rows.location
        latest = self._latest(context)
        last = None
        if latest is not None and latest.entry.app == context.app_id:
            last = latest.entry.checkpoint
            if not folder.is_finished(latest.entry):
                folder.finish(latest, staged, rows.attempt)
        if last == rows.checkpoint:
            return True
        if last != rows.after:
            return False
        header = rows.parts[0].notes.get("header", "") if rows.parts else ""
        entry = LogEntry(
            checkpoint=rows.checkpoint,
            after=rows.after,
            app=context.app_id,
            format=self.format,
            header=header,
            compression=self.compression,
            files=self._files(rows, context),
        )
        number = latest.number + 1 if latest is not None else 1
        # Another pipeline's last entry may have the same name without being finished yet.
        is_used_by_last = latest is not None and last is None and latest.entry.name == entry.name
        if is_used_by_last or folder.is_name_taken(entry):
            entry = msgspec.structs.replace(entry, suffix=f"-{number}")
        if not folder.append(number, entry):
            return False
        folder.finish(LastEntry(number, entry), staged, rows.attempt)
        return True

    def _files(self, rows: StagedRows, context: SinkContext) -> list[ExportedFile]:
        ending = _EXTENSIONS[self.format] + (".gz" if self.compression == "gzip" else "")
        depth = len(Staging(rows.checkpoint, "").folder(context).split("/")) + 1  # …/<attempt>/rows/
        files: list[ExportedFile] = []
        for part in rows.parts:
            for file in part.files:
                partitions = file.path.split("/")[depth:-1]
                path = "/".join([*partitions, f"part-{len(files):05d}.{ending}"])
                files.append(ExportedFile(staged=file.path, path=path, rows=file.rows))
        return files

    def rows_stay_reason(self) -> str:
        return "other tools may have read its files, so they are not removed"

    def _folder(self, context: SinkContext) -> ExportFolder:
        return ExportFolder(locate(context.place, self.path))

    def _latest(self, context: SinkContext) -> LastEntry | None:
        """Return the last entry of the folder's log. Raise Invalid if another pipeline wrote it."""
        latest = self._folder(context).latest()
        if latest is not None and latest.entry.app != context.app_id and not self.take_over:
            raise Invalid(
                f"sink {context.sink}: {self.target(context.place)} has the export of {latest.entry.app}",
                expected=f"a folder that only {context.app_id} exports to",
                help="use another folder, or declare the sink with take_over=True: the other pipeline's files stay",
                reason="OTHER_OWNER",
            )
        return latest


def _null_problem(name: str) -> str:
    return (
        f"column {name!r} is null, which is the same as empty text in a CSV file with a single column: define "
        "how to write it, such as options={'nullValue': 'NULL'}"
    )


def _csv_name(name: str, separator: str) -> str:
    if not any(special in name for special in (separator, '"', "\n")):
        return name
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _type_name(data_type: object) -> str:
    if isinstance(data_type, dict):
        return str(data_type.get("type"))
    return str(data_type)
