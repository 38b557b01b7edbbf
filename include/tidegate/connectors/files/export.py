"""Add rows to a folder of plain files: Parquet, CSV or JSON lines, for tools that know no Delta."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from tidegate.connectors.declaring import column_problems
from tidegate.connectors.delta.sink.properties import path_problems
from tidegate.connectors.delta.sink.table import refuse_unsafe_store
from tidegate.connectors.files.export_folder import LINE, ExportedFile, ExportFolder, LastEntry, LogEntry
from tidegate.connectors.sink import SinkContext, Staging
from tidegate.connectors.transactional import StagedRows, TransactionalSink
from tidegate.connectors.valid_texts import columns_for_json
from tidegate.delta import locate
from tidegate.delta.files.access import unavailable
from tidegate.delta.files.partitions import refuse_rows
from tidegate.errors import Invalid, Unavailable
from tidegate.records.names import listed, quoted
from tidegate.records.place import Place, is_relative, shared_uri
from tidegate.records.records import Json

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["FileExport"]

_PARTITIONS = ("string", "date", "boolean", "byte", "short", "integer", "long")
"""Types whose text in a folder's name means the same to every reader."""
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",  # Spark would cut off what is below a millisecond
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_CSV = _TIMES | {
    "escape": '"',  # a quote in a text is doubled, as every tool reads it
    "ignoreLeadingWhiteSpace": "false",  # Spark would cut spaces off
    "ignoreTrailingWhiteSpace": "false",
}
_JSON = _TIMES | {"ignoreNullFields": "false"}
_EXTENSIONS = {"parquet": "parquet", "csv": "csv", "json": "json"}


class FileExport(TransactionalSink):
    """Add the rows of each checkpoint to a folder of its own, as plain files.

        FileExport("exports/orders", format="csv", partition_by=["country"])

        exports/orders/checkpoint=00000042/country=DE/part-00000.csv
        exports/orders/_manifests/00000042.json     which files these are; written once they are all there

    On a local disk, a checkpoint's folder appears with all its files at once. An object store has no such step: there,
    read by the manifests. Rows are never taken back, so a rollback needs --keep or --leave.

    path: the folder, relative to the setting `data`, or a URL.
    format: "parquet", "csv" or "json" (one object on each line).
    partition_by: columns whose values become folders, and are not in the files. Empty text is the same folder as null,
        as for all who read such folders.
    header: of CSV: whether each file begins with the columns' names.
    compression: of CSV and JSON: "none" or "gzip".
    options: of CSV and JSON: options of Spark's to_csv and to_json, such as {"sep": ";"}. Without them, moments are
        written in UTC with microseconds. In a CSV file, null is nothing and empty text is "". A single column of texts
        with a null needs {"nullValue": "NULL"}, or the like: a line with nothing in it is skipped by many tools.
    take_over: export to a folder that another pipeline has exported to. Its files stay. If it has had a checkpoint of
        the same number, the new one's folder has a suffix, such as checkpoint=00000042-7.
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
            problems.append("compression and options are for CSV and JSON: Parquet files are compressed by themselves")
        if any(not isinstance(text, str) for text in (*self.options, *self.options.values())):
            problems.append(f"options is {self.options!r}; write names and values as texts")
        return problems

    def target(self, place: Place) -> str:
        return locate(place, self.path).url

    def shared_uri(self, place: Place) -> str:
        """See Sink."""
        return shared_uri(self.target(place))

    def relative_path(self) -> str | None:
        return self.path if is_relative(self.path) else None

    def check(self, context: SinkContext) -> None:
        latest = self._latest(context)
        if latest is None:
            refuse_unsafe_store(locate(context.place, self.path))

    def test_store(self, context: SinkContext) -> None:
        refuse_unsafe_store(locate(context.place, self.path))

    def output_problems(self, schema: Json, context: SinkContext) -> list[str]:
        types = {field["name"]: field["type"] for field in schema["fields"]}
        problems = [
            f"partition column {name!r} is not in the output ({', '.join(types)})"
            for name in self.partition_by
            if name not in types
        ]
        problems += [
            f"partition column {name!r} is {_word(types[name])}: a folder's name can be {', '.join(_PARTITIONS)}"
            for name in self.partition_by
            if types.get(name, "string") not in _PARTITIONS
        ]
        if self.format != "parquet" and LINE in self.partition_by:
            problems.append(f"partition column {LINE!r} is a name that the sink itself uses")
        if not set(types) - set(self.partition_by):
            problems.append("all columns are partition columns: none is left for the files")
        if self.format == "csv":
            problems += [
                f"column {name!r} is {_word(kind)}, which a CSV file cannot hold: make a text of it, or use JSON"
                for name, kind in types.items()
                if not isinstance(kind, str) or kind in ("binary", "variant")
            ]
        return problems

    def staged_form(self, frame: DataFrame, context: SinkContext) -> DataFrame:
        """CSV and JSON: a column with each row's line, made by Spark."""
        if self.format == "parquet":
            return frame
        from pyspark.sql import functions as F

        columns = self._file_columns(frame)
        if self.format == "csv":
            line = F.to_csv(F.struct(*map(quoted, columns)), _CSV | self.options)
            if len(columns) == 1:  # Spark fails on a null, and tools skip a line without anything
                line = self._null_alone(frame, columns[0], line)
        else:
            line = F.to_json(F.struct(*columns_for_json(frame, columns)), _JSON | self.options)
        return frame.select(line.alias(LINE), *map(quoted, self.partition_by))

    def _null_alone(self, frame: DataFrame, name: str, line: Column) -> Column:
        """Return the lines of a file with a single column, in which a null is a line as well."""
        from pyspark.sql import functions as F

        is_null, text = F.col(quoted(name)).isNull(), self.options.get("nullValue")
        if text:
            return F.when(is_null, F.lit(text)).otherwise(line)
        if frame.schema[name].dataType.typeName() in ("string", "varchar", "char"):
            why = f"column {name!r} is null, which alone in a line of CSV is the same as empty text: say how it is to "
            return refuse_rows(line, is_null, f"{why}be written, options={{'nullValue': 'NULL'}}")
        return F.when(is_null, F.lit('""')).otherwise(line)

    def _file_columns(self, frame: DataFrame) -> list[str]:
        return [name for name in frame.columns if name not in self.partition_by]

    def staged_partitions(self) -> Sequence[str]:
        return self.partition_by

    def notes(self, frame: DataFrame) -> Json:
        """CSV: the line of names that each file begins with."""
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
        return latest.entry.checkpoint if self._folder(context).is_finished(latest.entry) else latest.entry.after

    def load(self, rows: StagedRows, context: SinkContext) -> bool:
        with self._storage_errors(context):
            return self._load(rows, context)

    @contextlib.contextmanager
    def _storage_errors(self, context: SinkContext) -> Iterator[None]:
        """Raise what the folder's disk refuses as Unavailable: what is decided waits until it is put right."""
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
        ours = latest is not None and latest.entry.app == context.app_id
        if latest is not None and ours and not folder.is_finished(latest.entry):
            folder.finish(latest, staged, rows.attempt)
        last = latest.entry.checkpoint if latest is not None and ours else None
        if last == rows.checkpoint:
            return True
        if last != rows.after:
            return False
        entry = LogEntry(
            checkpoint=rows.checkpoint,
            after=rows.after,
            app=context.app_id,
            format=self.format,
            header=next((part.notes.get("header", "") for part in rows.parts), ""),
            compression=self.compression,
            files=self._files(rows, context),
        )
        number = latest.number + 1 if latest is not None else 1
        theirs = latest is not None and not ours and latest.entry.name == entry.name  # perhaps not finished
        if theirs or folder.is_name_taken(entry):
            entry = msgspec.structs.replace(entry, suffix=f"-{number}")
        if not folder.append(number, entry):
            return False
        folder.finish(LastEntry(number, entry), staged, rows.attempt)
        return True

    def _files(self, rows: StagedRows, context: SinkContext) -> list[ExportedFile]:
        ending = _EXTENSIONS[self.format] + (".gz" if self.compression == "gzip" else "")
        depth = len(Staging(rows.checkpoint, "").folder(context).split("/")) + 1  # …/<attempt>/rows/
        files = []
        for number, file in enumerate(file for part in rows.parts for file in part.files):
            partitions = file.path.split("/")[depth:-1]
            path = "/".join([*partitions, f"part-{number:05d}.{ending}"])
            files.append(ExportedFile(staged=file.path, path=path, rows=file.rows))
        return files

    def rows_stay_reason(self) -> str:
        return "other tools may have read its files, so they are not taken back"

    def _folder(self, context: SinkContext) -> ExportFolder:
        return ExportFolder(locate(context.place, self.path))

    def _latest(self, context: SinkContext) -> LastEntry | None:
        """Return the last entry of the folder's log. Raise Invalid if another pipeline made it."""
        latest = self._folder(context).latest()
        if latest is not None and latest.entry.app != context.app_id and not self.take_over:
            raise Invalid(
                f"sink {context.sink}: {self.target(context.place)} holds what {latest.entry.app} has exported",
                expected=f"a folder of {context.app_id} alone",
                help="use another folder, or declare the sink with take_over=True: the other one's files stay",
                reason="OTHER_OWNER",
            )
        return latest


def _csv_name(name: str, separator: str) -> str:
    quote = any(letter in name for letter in (separator, '"', "\n"))
    return '"' + name.replace('"', '""') + '"' if quote else name


def _word(kind: object) -> str:
    return kind if isinstance(kind, str) else str(dict(kind).get("type")) if isinstance(kind, dict) else str(kind)
