"""A source that reads each file of a folder exactly once, in any order or in order of names."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tidegate import seams
from tidegate.connectors.files.consumed import ConsumedFiles
from tidegate.connectors.files.fingerprints import Fingerprint, fingerprint
from tidegate.connectors.files.folder import Folder, Pattern, is_ignored, missing_folder, open_folder
from tidegate.connectors.files.formats.csv_headers import has_header
from tidegate.connectors.files.formats.exact_values import is_read_as_text
from tidegate.connectors.files.formats.json_lines import DECODED
from tidegate.connectors.files.formats.utf8 import is_utf8
from tidegate.connectors.files.highest import highest_micros
from tidegate.connectors.files.notifications import SqsQueue, queue_problems
from tidegate.connectors.files.reading import columns_of_rows, no_rows_of, read_files
from tidegate.connectors.files.rescuing import read_rescuing, survey_files
from tidegate.connectors.files.rescuing_csv import read_rescuing_csv, survey_csv
from tidegate.connectors.files.rescuing_parquet import read_rescuing_parquet, survey_parquet
from tidegate.connectors.files.template import fill_in, fixed_folder, is_template, template_problems
from tidegate.connectors.schema.ddl import DdlError, parse_ddl
from tidegate.connectors.schema.drift import RESCUED, OnNewColumn, OnType, Survey, policy_problems
from tidegate.connectors.schema.source_with_schema import SourceWithSchema
from tidegate.connectors.source import Notifications, Planned, SourceContext, foreign_position_error
from tidegate.delta.files.access import unavailable
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import Place, is_url, shared_uri
from tidegate.records.records import Amount, Json, Lag, Unread
from tidegate.spark.storage.exact_files import unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Files", "files_problems", "format_of", "option_problems"]


MAX_LISTED_NAMES = 20
"""The most file names in one message."""

MAX_SAMPLED_FILES = 1000
"""How many waiting files are sampled to estimate their size and age, because there may be very many."""

MAX_OPEN_OBJECTS = 16
"""How many files of an object store are opened at the same time, because each request takes a while."""


class Files(SourceWithSchema):
    """Read JSON lines, CSV or Parquet files from a folder, each file exactly once.

        Files("landing/orders/*.json", schema="order_id long, country string, at timestamp")

    With {start:…} or {end:…} in the pattern, each run reads the files of its data interval:

        Files("landing/orders/{start:%Y-%m-%d}/*.json", schema="…")

    A file is identified by its name. Once read, a name is not read again, so new content under the same name goes
    unnoticed. Clocks and modification times only matter for `min_age` and for reporting how long files have waited.

    pattern: a path, relative to the pipeline's place. `*`, `?` and `[abc]` match within a name, `**` matches folders at
        any depth. Names that begin with `_` or `.`, or end in .tmp, .crc or .inprogress, are ignored. {start:…} and
        {end:…} are the bounds of the interval in UTC, in strftime's format. Such a pattern reads all files of the
        interval every time that the interval is processed, so `order` and bounds have no effect.
    format: "json", "csv" or "parquet". By default, the suffix in the pattern decides.
    schema: the columns, in DDL. Columns that only the files have are ignored.
    order: "arrival" reads all files that have not been read, in order of their names. "name" reads strictly in order of
        names, for producers whose names always rise. If a file arrives with a lower name than the last one read, it is
        not read, and the pipeline is unhealthy until the file is removed or the order is changed to "arrival". The
        order may be changed at any time without reading a file twice.
    max_files, max_bytes: the limits of one checkpoint. It always reads at least one file.
    on_corrupt: what to do with a malformed record of JSON or CSV. "refuse" fails the checkpoint and reports the file
        and the record. "keep" emits the row with the record's text in a column `_corrupt_record`, which is null for
        good records. A record is also malformed if it has a decimal with more places than its column, a time after the
        year 9999 (numbers are read as seconds), invalid bytes (the kept text shows them as \\xE8), or, in JSON, further
        text on its line.
    options: options of Spark's reader, such as {"header": "true"} for CSV.
    min_age: how many seconds ago a file must have been modified, for producers that write files in place. It only
        delays: it never makes a file be skipped or read twice.
    missing_columns: what to do with a file of Parquet, or of CSV with a header, that lacks a column of the schema:
        "refuse" it, or read "null".
    on_new_column: what to do with JSON keys that the schema lacks, at any depth, and with such columns of Parquet, and
        of CSV with a header. "ignore" drops them; a JSON key that differs from a missing column only in case makes the
        record malformed. "refuse" treats the record as malformed, and refuses a file of Parquet or CSV. "rescue" keeps
        the values as JSON in the rescue column. "evolve" does so as well, and the next checkpoint reads them as
        columns. "hold" is "evolve" once a person approves: the checkpoint that finds a new key is held, as by a gate.
    on_type: what to do with values of JSON and CSV that their column cannot hold, and with columns of Parquet that
        cannot be read as their column's type. "refuse" treats the record as malformed, and refuses the Parquet file.
        "rescue" keeps the values in the rescue column, and their column is null. "widen" does so as well, and from the
        next checkpoint on the column has a wider type, if one holds such values: bigint or double for int, a larger
        decimal, and so on.
    rescue_column: the name of the rescue column. Rows have it if one of the two policies rescues.
    required: an interval without files is not ready, and its run is tried again. By default it has no rows. But an
        interval that had files is not processed again without any, because they may have been archived.
    moved_from: the former name of the folder before the first wildcard, if the folder was renamed. Files that were read
        there are not read again.
    queue: the URL of an SQS queue that receives the notifications of the bucket, for `interval = "event"`: the bucket
        is listed when a message comes, and every minute, not every few seconds. Each pipeline needs its own queue.
    """

    kind = "files"
    can_stop = True
    unit = "bytes"
    may_be_archived = True
    schema: str

    def __init__(
        self,
        pattern: str,
        format: Literal["json", "csv", "parquet"] | None = None,
        *,
        schema: str,
        order: Literal["arrival", "name"] = "arrival",
        max_files: int = 1000,
        max_bytes: int | None = None,
        on_corrupt: Literal["refuse", "keep"] = "refuse",
        options: Mapping[str, Any] | None = None,
        min_age: float = 0,
        missing_columns: Literal["refuse", "null"] = "refuse",
        on_new_column: OnNewColumn = "ignore",
        on_type: OnType = "refuse",
        rescue_column: str = RESCUED,
        required: bool = False,
        moved_from: str | None = None,
        queue: str | None = None,
    ) -> None:
        self.pattern = pattern
        self.format = format or format_of(pattern)
        self.declare_schema(schema, on_new_column, on_type, rescue_column)
        self.order = order
        self.max_files = max_files
        self.max_bytes = max_bytes
        self.on_corrupt = on_corrupt
        self.options = {} if options is None else options
        self.min_age = min_age
        self.missing_columns = missing_columns
        self.required = required
        self.moved_from = moved_from
        self.queue = queue

    @property
    def by_interval(self) -> bool:
        """See Source."""
        return is_template(self.pattern)

    def columns_depend_on(self) -> str:
        """See Source."""
        return repr((self.format, self.schema, self.on_corrupt, self.schema_policy, sorted(self.options.items())))

    def column_names(self) -> list[str]:
        """See Source."""
        return [column.name for column in columns_of_rows(self)]

    def describe(self) -> Json:
        """See Source."""
        description = {
            "kind": self.kind,
            "pattern": self.pattern,
            "format": self.format,
            "schema": self.schema,
            "order": self.order,
            "max_files": self.max_files,
            "max_bytes": self.max_bytes,
            "on_corrupt": self.on_corrupt,
            "options": {key: str(value) for key, value in self.options.items()},
            "min_age": self.min_age,
            "missing_columns": self.missing_columns,
            "on_new_column": self.on_new_column,
            "on_type": self.on_type,
            "rescue_column": self.rescue_column,
            "required": self.required,
        }
        if self.moved_from is not None:
            description["moved_from"] = self.moved_from
        if self.queue is not None:
            description["queue"] = self.queue
        return description

    def shared_uri(self, place: Place) -> str:
        """See Source: the folder that contains all of the source's files."""
        folder = fixed_folder(self.pattern) if self.by_interval else Pattern.parse(self.pattern).folder
        return shared_uri(place.url(folder))

    def problems(self) -> list[str]:
        """See Source."""
        return files_problems(self)

    def notifications(self, context: SourceContext) -> Notifications | None:
        """See Source."""
        return SqsQueue(self.queue, context.place.options) if self.queue is not None else None

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """Plan the next files, each with its fingerprint, which is all that a plan reads of them."""
        if self.by_interval:
            return self._plan_interval(context)
        pattern = Pattern.parse(self.pattern)
        position = _Position.parse(start, pattern, context, self.moved_from)
        folder = open_folder(context.place, pattern.folder)
        if not folder.exists():
            raise missing_folder(context.source, folder.url, started=start is not None)
        consumed = ConsumedFiles(position.seen, context.blobs)
        unread = sorted(consumed.missing(folder.names(pattern)))
        readable, passed_over = self._split_out_of_order(unread, position.after)
        if context.stop_position is not None:
            stop = _Position.parse(context.stop_position, pattern, context, self.moved_from)
            after_stop = set(ConsumedFiles(stop.seen, context.blobs).missing(readable))
            readable = [name for name in readable if name not in after_stop]
        waiting = self._old_enough(folder, readable)
        chosen, deleted = self._choose(folder, waiting, context)
        has_more = len(chosen) + deleted < len(waiting)
        fingerprints, files = self._fingerprint_files(folder, chosen)
        end = start
        if files:
            after = max(position.after, files[-1]["name"])
            end = _Position(pattern.folder, after, consumed.write_with(fingerprints)).json
        return Planned(
            end=end,
            splits={"folder": pattern.folder, "files": files},
            is_empty=not files,
            has_more=has_more or len(waiting) < len(readable),
            summary=_summary(files, len(waiting) - deleted if has_more else None),
            amount=sum(file["size"] for file in files),
            unread=_describe_passed_over(passed_over, position.after),
            lag=_lag(folder, readable, set(chosen)),
        )

    def _plan_interval(self, context: SourceContext) -> Planned:
        """Plan all files that the interval has now."""
        assert context.interval is not None
        parent = open_folder(context.place, fixed_folder(self.pattern))
        if not parent.exists():
            raise missing_folder(context.source, parent.url, started=False)
        pattern = Pattern.parse(fill_in(self.pattern, context.interval))
        folder = open_folder(context.place, pattern.folder)
        names = sorted(folder.names(pattern)) if folder.exists() else []
        ready = self._old_enough(folder, names)
        if len(ready) < len(names) or (self.required and not names):
            shortage, expected = "no files yet", "all files of an interval before its run (required=True)"
            if names:
                shortage = f"{len(names) - len(ready)} files younger than min_age"
                expected = "all files of an interval before its run"
            raise Unavailable(
                f"source {context.source!r}: {folder.url} has {shortage} for interval {context.interval}",
                expected=expected,
                help="the next attempt checks again; schedule the run later if files regularly arrive this late",
                reason="INTERVAL_NOT_READY",
            )
        _, files = self._fingerprint_files(folder, names)
        splits = {"folder": pattern.folder, "files": files}
        return Planned(end=None, splits=splits, is_empty=not files, summary=_summary(files))

    def _fingerprint_files(self, folder: Folder, names: list[str]) -> tuple[dict[str, Fingerprint], list[Json]]:
        """Return the fingerprints of files, and what a plan records of them. Raise Invalid if Spark cannot read one.

        Files that were deleted since they were listed are left out.
        """
        fingerprints: dict[str, Fingerprint] = {}
        files: list[Json] = []
        for name, content in _fingerprint_all(folder, names).items():
            if content is not None:
                fingerprints[name] = content
                files.append({"name": name, "size": content.size, "sha": content.sha})
        _refuse_unreadable(folder, fingerprints)
        if self.format == "parquet":
            _refuse_incomplete_parquet(folder, fingerprints)
        return fingerprints, files

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        """Check that every file is unchanged and has the columns of the schema.

        The number of rows is known for Parquet files only, from their footers.
        """
        from tidegate.connectors.files.formats.headers import check_contents

        folder = open_folder(context.place, splits["folder"])
        files: list[Json] = splits["files"]
        names = [file["name"] for file in files]
        fingerprints = _fingerprint_all(folder, names)
        changes = []
        for file in files:
            change = _change(file, fingerprints[file["name"]])
            if change:
                changes.append(change)
        if changes:
            lines = changes[:MAX_LISTED_NAMES]
            if len(changes) > MAX_LISTED_NAMES:
                lines.append(f"… and {len(changes) - MAX_LISTED_NAMES} more")
            raise Invalid(
                f"source {context.source!r}: {len(changes)} of {len(files)} planned file(s) in {folder.url} changed:"
                + "".join(f"\n  {line}" for line in lines),
                expected="files that do not change after the checkpoint was planned",
                help="restore them and try again; or let this checkpoint be aborted: the next plan reads the files as "
                "they are then, and skips those that no longer exist",
                reason="SOURCE_CHANGED",
            )
        rows = check_contents(self, folder, names, context)
        return Amount(rows=rows if files else 0, bytes=sum(file["size"] for file in files), files=len(files))

    def max_event_time(self, column: str, splits: Json, context: SourceContext) -> int | None:
        """See Source. The footers of Parquet files contain it."""
        types = {field.name: field.type for field in parse_ddl(self.schema)}
        if self.format != "parquet" or types.get(column) != "timestamp":
            return None
        folder = open_folder(context.place, splits["folder"])
        return highest_micros(folder, [file["name"] for file in splits["files"]], column)

    def files(self, splits: Json) -> list[str]:
        """See Source. The names are relative to the pattern's folder."""
        return [file["name"] for file in splits["files"]]

    def no_rows(self, spark: SparkSession) -> DataFrame:
        return no_rows_of(spark, self)

    def survey(self, spark: SparkSession, splits: Json, context: SourceContext) -> Survey | None:
        """See Source."""
        if not self.schema_policy.rescues:
            return None
        folder = open_folder(context.place, splits["folder"])
        names = [file["name"] for file in splits["files"]]
        if self.format == "parquet":
            return survey_parquet(self, folder, names)
        if self.format == "csv":
            return survey_csv(spark, self, folder, names)
        return survey_files(spark, self, folder, names)

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the rows of exactly the planned files."""
        folder = open_folder(context.place, splits["folder"])
        names = [file["name"] for file in splits["files"]]
        survey = context.survey or self.survey(spark, splits, context)
        if survey is not None and not survey.is_clean and self.format == "parquet":
            return read_rescuing_parquet(spark, self, folder, names)
        if survey is not None and not survey.is_clean and self.format == "csv":
            return read_rescuing_csv(spark, self, folder, names, context)
        if survey is not None and not survey.is_clean:
            return read_rescuing(spark, self, folder, names, context)
        return read_files(spark, self, folder, names, context, is_clean=survey is not None)

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        if other is None or position == other:
            return True
        consumed = ConsumedFiles(position["seen"] if position is not None else [], context.blobs)
        return consumed.is_superset_of(ConsumedFiles(other["seen"], context.blobs))

    def missing_input(self, start: Json | None, end: Json | None, context: SourceContext) -> list[str]:
        """See Source. Positions know how many files were read, and whether a given file was."""
        if end is None or start == end or self.by_interval:
            return []
        pattern = Pattern.parse(self.pattern)
        position = _Position.parse(end, pattern, context, self.moved_from)
        folder = open_folder(context.place, pattern.folder)
        names = folder.names(pattern) if folder.exists() else []
        before = ConsumedFiles(start["seen"] if start is not None else [], context.blobs)
        after = ConsumedFiles(position.seen, context.blobs)
        read_count = len(after) - len(before)
        unread_before = before.missing(names)
        present = len(unread_before) - len(after.missing(unread_before))
        if read_count <= present:
            return []
        missing = read_count - present
        return [f"{missing:,} of {read_count:,} files that were read are no longer in {folder.url}"]

    def _split_out_of_order(self, unread: list[str], after: str) -> tuple[list[str], list[str]]:
        """Return the names that may be read next, in order, and those that are too low for the order by name."""
        if self.order == "arrival" or not after:
            return unread, []
        readable = [name for name in unread if name > after]
        passed_over = [name for name in unread if name <= after]
        return readable, passed_over

    def _old_enough(self, folder: Folder, names: list[str]) -> list[str]:
        """Return the files that are at least `min_age` old. In order of names, no file overtakes a younger one."""
        if not self.min_age:
            return names
        now, old_enough = seams.now().timestamp(), []
        for name in names:
            file = folder.stat(name)
            if file is None:
                continue  # deleted since it was listed
            if abs(now - file.modified) >= self.min_age:
                old_enough.append(name)
            elif self.order == "name" and not self.by_interval:
                break
        return old_enough

    def _choose(self, folder: Folder, waiting: list[str], context: SourceContext) -> tuple[list[str], int]:
        """Return as many files as the bounds allow, at least one, and how many of the others no longer exist."""
        max_files, max_bytes = self.max_files * context.bound_factor, context.bound(self.max_bytes)
        chosen: list[str] = []
        total = deleted = 0
        for name in waiting:
            if len(chosen) == max_files:
                break
            file = folder.stat(name)
            if file is None:
                deleted += 1
                continue
            total += file.size
            if chosen and max_bytes is not None and total > max_bytes:
                break
            chosen.append(name)
        return chosen, deleted


@dataclass(frozen=True)
class _Position:
    """The end of a plan: the highest name that was consumed, and the set of all names."""

    folder: str
    after: str
    seen: list[Json]

    @property
    def json(self) -> Json:
        return {"folder": self.folder, "after": self.after, "seen": self.seen}

    @staticmethod
    def parse(start: Json | None, pattern: Pattern, context: SourceContext, moved_from: str | None) -> _Position:
        if start is None:
            return _Position(pattern.folder, "", [])
        if set(start) != {"folder", "after", "seen"}:
            raise foreign_position_error(context.source, start, "a position of a Files source")
        if moved_from is not None and start["folder"] == Pattern.parse(f"{moved_from.rstrip('/')}/*").folder:
            start = start | {"folder": pattern.folder}
        if start["folder"] != pattern.folder:
            raise Invalid(
                f"source {context.source!r}: the folder of the pattern is now {pattern.folder!r}, but files were read "
                f"from {start['folder']!r} before",
                expected="the same folder before the first wildcard: files are remembered by names relative to it",
                help=f"restore the pattern; or, if the files have been moved, set moved_from={start['folder']!r}, so "
                "that files that were read are not read again; or, to read all of the new folder, rename the source, "
                "and drop the old position with the setting allow_non_restored_state, once",
                reason="FOLDER_CHANGED",
            )
        return _Position(**start)


def _lag(folder: Folder, unread: list[str], chosen: set[str]) -> Lag:
    """Return the backlog apart from the files that were chosen, estimated from a sample if there are very many."""
    waiting = [name for name in unread if name not in chosen]
    step = -(-len(waiting) // MAX_SAMPLED_FILES) or 1  # the quotient is rounded up
    sample = [file for file in map(folder.stat, waiting[::step]) if file is not None]
    if not sample:
        return Lag(bytes=0, files=0)  # all files have been deleted since they were listed
    size = sum(file.size for file in sample)
    age = seams.now().timestamp() - min(file.modified for file in sample)
    files = len(sample) if step == 1 else len(waiting)
    return Lag(files=files, bytes=round(size * files / len(sample)), seconds=round(max(age, 0.0), 1))


def _fingerprint_all(folder: Folder, names: list[str]) -> dict[str, Fingerprint | None]:
    """Return fingerprints by name, None for a file that does not exist."""
    if folder.is_local:
        return {name: _fingerprint_one(folder, name) for name in names}
    with ThreadPoolExecutor(MAX_OPEN_OBJECTS) as pool:
        fingerprints = pool.map(lambda name: _fingerprint_one(folder, name), names)
        return dict(zip(names, fingerprints, strict=True))


def _fingerprint_one(folder: Folder, name: str) -> Fingerprint | None:
    try:
        with folder.open(name) as stream:
            return fingerprint(stream)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unavailable(folder.full(name), error) from error


def _change(file: Json, current: Fingerprint | None) -> str | None:
    """Return how a planned file has changed, or None."""
    if current is None:
        return f"{file['name']!r} was deleted"
    if current.size < file["size"]:
        return f"{file['name']!r} was truncated: {current.size:,} bytes, {file['size']:,} planned"
    if current.size > file["size"]:
        return f"{file['name']!r} has grown: {current.size:,} bytes, {file['size']:,} planned"
    if current.sha != file["sha"]:
        return f"{file['name']!r} was rewritten with the same size"
    return None


def _refuse_unreadable(folder: Folder, names: Iterable[str]) -> None:
    if not folder.is_local:
        return
    bad = [name for name in names if unreadable(folder.full(name))]
    if bad:
        listed = ", ".join(repr(name) for name in bad[:MAX_LISTED_NAMES])
        raise Invalid(
            f"Spark cannot read {len(bad)} file(s) in {folder.url}: {listed}",
            expected=r"paths with a colon, or with any of [ ] { } * ? \, but not both",
            help="rename these files",
            reason="BAD_FILE_NAME",
        )


def _refuse_incomplete_parquet(folder: Folder, fingerprints: Mapping[str, Fingerprint]) -> None:
    problems = []
    for name, content in fingerprints.items():
        if not content.size:
            problems.append(f"{name!r} is empty")
        elif content.size < 12 or content.head not in (b"PAR1", b"PARE") or content.head != content.tail:
            problems.append(f"{name!r} has no Parquet footer")
    if problems:
        listed = "; ".join(problems[:MAX_LISTED_NAMES])
        raise Invalid(
            f"{len(problems)} file(s) in {folder.url} are not complete Parquet files: {listed}",
            expected="files that begin and end with PAR1",
            help="replace or remove them; producers should write to names that end in .tmp, and rename complete files",
            reason="NOT_PARQUET",
        )


def _summary(files: Iterable[Json], waiting: int | None = None) -> str:
    sizes = [file["size"] for file in files]
    if not sizes:
        return "no new files"
    if waiting is not None:
        count = f"{len(sizes):,} of {waiting:,} files"
    elif len(sizes) == 1:
        count = "1 file"
    else:
        count = f"{len(sizes):,} files"
    return f"{count}, {_readable_size(sum(sizes))}"


def _describe_passed_over(names: list[str], after: str) -> Unread | None:
    if not names:
        return None
    first_names = ", ".join(repr(name) for name in names[:3])
    if len(names) > 3:
        first_names += ", …"
    subject = "file has a name" if len(names) == 1 else "files have names"
    return Unread(
        count=len(names),
        what=f'{len(names):,} {subject} below the last one that was read, {after!r}, and order="name" never goes back: '
        f"{first_names}",
        help='to read them, set order="arrival" (no file is read twice); or move them out of the folder',
    )


def _readable_size(count: float) -> str:
    if count < 1000:
        return f"{count:,.0f} B"
    for unit in ("kB", "MB"):
        count /= 1000
        if count < 1000:
            return f"{count:,.1f} {unit}"
    return f"{count / 1000:,.1f} GB"


_TEXT_OPTIONS: Final = (
    "compression", "dateFormat", "enableDateTimeParsingFallback", "encoding", "charset", "lineSep", "locale",
    "multiLine", "timeZone", "timestampFormat", "timestampNTZFormat",
)  # fmt: skip

SUPPORTED_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "json": (
        *_TEXT_OPTIONS, "allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers",
        "allowNumericLeadingZeros", "allowSingleQuotes", "allowUnquotedControlChars", "allowUnquotedFieldNames",
        "maxNestingDepth", "maxNumLen", "maxStringLen", "prefersDecimal", "primitivesAsString",
    ),
    "csv": (
        *_TEXT_OPTIONS, "charToEscapeQuoteEscaping", "comment", "delimiter", "emptyValue", "enforceSchema", "escape",
        "header", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "maxCharsPerColumn", "maxColumns",
        "nanValue", "negativeInf", "nullValue", "positiveInf", "quote", "sep", "unescapedQuoteHandling",
    ),
    "parquet": ("datetimeRebaseMode", "int96RebaseMode"),
}  # fmt: skip

REFUSED_OPTIONS: Final[dict[str, str]] = {
    "mode": "use on_corrupt",
    "columnNameOfCorruptRecord": "it is always _corrupt_record",
    "badRecordsPath": "use on_corrupt",
    "path": "it is the pattern",
    "basePath": "folders add no columns",
    "recursiveFileLookup": "write ** in the pattern",
    "pathGlobFilter": "it is the pattern",
    "modifiedBefore": "modification times decide nothing",
    "modifiedAfter": "modification times decide nothing",
    "inferSchema": "the schema is declared",
    "samplingRatio": "the schema is declared",
    "dropFieldIfAllNull": "the schema is declared",
    "mergeSchema": "the schema is declared",
    "preferDate": "the schema is declared",
    "columnPruning": "records are always checked as a whole",
    "ignoreCorruptFiles": "files are never skipped",
    "ignoreMissingFiles": "files are never skipped",
    "singleVariantColumn": "the schema is declared",
    "paths": "it is the pattern",
}


def option_problems(options: Mapping[Any, object], format: str | None) -> list[str]:
    """Return the options that are unknown, not for this format, reserved for tidegate, or not plain values."""
    problems = []
    supported = SUPPORTED_OPTIONS.get(format or "", ())
    allowed = {name.lower() for name in supported}
    refused = {name.lower(): reason for name, reason in REFUSED_OPTIONS.items()}
    keys: set[str] = set()
    for name, value in options.items():
        if not isinstance(name, str):
            problems.append(f"option {name!r} is not a string")
            continue
        key = name.lower()
        if key in keys:
            problems.append(f"option {name!r} is set twice (case is ignored)")
        keys.add(key)
        if key in refused:
            problems.append(f"option {name!r} cannot be set: {refused[key]}")
        elif supported and key not in allowed:
            problems.append(f"option {name!r} is unknown for {format}{_similar_option(name, supported)}")
        if not isinstance(value, str | bool | int | float):
            problems.append(f"option {name!r} is {value!r}; it must be text, a number or a boolean")
    return problems


def _similar_option(name: str, allowed: tuple[str, ...]) -> str:
    options_by_lower_case = {option.lower(): option for option in allowed}
    similar = difflib.get_close_matches(name.lower(), options_by_lower_case, n=1)
    return f"; did you mean {options_by_lower_case[similar[0]]!r}?" if similar else ""


FORMATS: Final = {
    "json": ("json", "jsonl", "ndjson"),
    "csv": ("csv",),
    "parquet": ("parquet",),
}
COMPRESSION_SUFFIXES: Final = ("gz", "bz2", "zst", "lz4", "snappy", "deflate")


def format_of(pattern: object) -> str | None:
    """Return the format for a pattern's suffix, or None."""
    if not isinstance(pattern, str):
        return None
    suffixes = pattern.rsplit("/", 1)[-1].lower().split(".")[1:]
    while suffixes and suffixes[-1] in COMPRESSION_SUFFIXES:
        suffixes.pop()
    if suffixes:
        for name, format_suffixes in FORMATS.items():
            if suffixes[-1] in format_suffixes:
                return name
    return None


def files_problems(source: Files) -> list[str]:
    """Return all problems of the declaration."""
    problems = _pattern_problems(source.pattern) + _interval_problems(source)
    if source.format is None and not problems:
        problems.append(
            f"the suffix of pattern {source.pattern!r} is of no known format; set format to json, csv or parquet"
        )
    elif source.format is not None and source.format not in FORMATS:
        problems.append(f"format {source.format!r} is unknown{_similar(str(source.format), FORMATS)}")
    try:
        columns = {column.name.lower(): column.type for column in parse_ddl(source.schema)}
    except DdlError as error:
        problems.append(f"schema {error}")
        columns = {}
    for name, value, choices in (
        ("order", source.order, ("name", "arrival")),
        ("on_corrupt", source.on_corrupt, ("refuse", "keep")),
        ("missing_columns", source.missing_columns, ("refuse", "null")),
    ):
        if value not in choices:
            problems.append(f"{name} is {value!r}; it must be {' or '.join(repr(choice) for choice in choices)}")
    bounds = {"max_files": source.max_files}
    if source.max_bytes is not None:
        bounds["max_bytes"] = source.max_bytes
    for name, bound in bounds.items():
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
            problems.append(f"{name} is {bound!r}; it must be a whole number, at least 1")
    if source.moved_from is not None and (not isinstance(source.moved_from, str) or not source.moved_from.strip("/ ")):
        problems.append(f"moved_from is {source.moved_from!r}; it must be the former folder of these files")
    if source.queue is not None:
        problems += queue_problems(source.queue)
        if source.min_age:
            problems.append("queue and min_age exclude each other: an object of a bucket is whole once it is there")
    if isinstance(source.min_age, bool) or not isinstance(source.min_age, int | float) or not 0 <= source.min_age < 1e9:
        problems.append(f"min_age is {source.min_age!r}; it must be a number of seconds, at least 0")
    problems += policy_problems(source.schema_policy, columns) + _policy_problems(source)
    return problems + _corrupt_problems(source, columns) + _option_problems(source, columns)


def _policy_problems(source: Files) -> list[str]:
    """Return why a source of this format cannot have this policy."""
    policy = source.schema_policy
    if source.format == "json" and isinstance(source.options, Mapping):
        options = {str(name).lower(): str(value) for name, value in source.options.items()}
        encoding = options.get("encoding") or options.get("charset") or ""
        if policy.rescues and not is_utf8(encoding):
            return [f"encoding {encoding!r} cannot be combined with a rescue column, which needs UTF-8"]
    elif source.format == "csv" and policy.on_new_column != "ignore" and not _reads_headers(source.options):
        return ["on_new_column of CSV goes by the header of each file: set options={'header': 'true'}"]
    elif source.format == "csv" and policy.on_type == "widen" and _names_locale(source.options):
        return ["on_type='widen' of CSV cannot be combined with option 'locale', by which points and commas differ"]
    return []


def _names_locale(options: object) -> bool:
    return isinstance(options, Mapping) and "locale" in {str(name).lower() for name in options}


def _reads_headers(options: object) -> bool:
    return not isinstance(options, Mapping) or has_header({str(name): value for name, value in options.items()})


def _pattern_problems(pattern: object) -> list[str]:
    if not isinstance(pattern, str) or not pattern.strip() or "\0" in pattern:
        return [f"pattern is {pattern!r}; it must be a path like 'landing/orders/*.json'"]
    if pattern.endswith("/"):
        return [f"pattern {pattern!r} names a folder; name the files in it, like '{pattern}*.json'"]
    if "://" in pattern and not is_url(pattern) and not pattern.startswith("file://"):
        return [f"pattern {pattern!r} has an unknown scheme; write a path, or a URL like s3://bucket/folder/*.json"]
    problems = []
    parts = Pattern.parse(pattern).parts
    if not parts or ".." in parts:
        problems.append(f"pattern {pattern!r} leaves its folder: '..' is only allowed before the first wildcard")
    for part in parts:
        if "**" in part and part != "**":
            problems.append(f"pattern {pattern!r}: '**' must be alone between slashes")
        if is_ignored(part) and part != "..":
            problems.append(f"pattern {pattern!r}: names like {part!r} are hidden or temporary, and are never read")
    return problems


def _interval_problems(source: Files) -> list[str]:
    if not is_template(source.pattern):
        if source.required:
            return ["required is for patterns with {start:…}: it says that every interval has files"]
        return []
    problems = template_problems(source.pattern)
    if source.max_bytes is not None or source.max_files != 1000:
        problems.append(
            "max_files and max_bytes have no effect with {start:…} in the pattern: intervals are read completely"
        )
    return problems


def _corrupt_problems(source: Files, columns: Mapping[str, str]) -> list[str]:
    if source.on_corrupt != "keep":
        return []
    if source.format == "parquet":
        return ["on_corrupt='keep' is for JSON and CSV: a Parquet file is readable as a whole or not at all"]
    if "_corrupt_record" in columns:
        return ["on_corrupt='keep' adds the column _corrupt_record itself; remove it from the schema"]
    return []


def _option_problems(source: Files, columns: Mapping[str, str]) -> list[str]:
    if not isinstance(source.options, Mapping):
        return [f"options is {source.options!r}; it must be a mapping like {{'header': 'true'}}"]
    problems = option_problems(source.options, source.format)
    if any(str(name).lower() == "locale" for name in source.options) and source.format != "parquet":
        for name, data_type in columns.items():
            if is_read_as_text(data_type):
                problems.append(
                    f"column {name!r} is {data_type}, which cannot be combined with option 'locale': decimals of 38 "
                    "digits are read as text; declare at most 37 digits, or remove the option"
                )
    if not problems and source.format == "json":
        problems = _encoding_problems(source)
    return problems


def _encoding_problems(source: Files) -> list[str]:
    """Return why JSON in this encoding cannot be read: Spark's reader refuses it, or Python cannot decode it."""
    options = {str(name).lower(): str(value) for name, value in source.options.items()}
    encoding = options.get("encoding") or options.get("charset") or ""
    if is_utf8(encoding):
        return []
    if source.on_corrupt == "keep":
        try:
            codecs.lookup(encoding)
        except LookupError:
            return [f"encoding {encoding!r} is unknown"]
    elif encoding.upper() not in DECODED:
        return [f"encoding {encoding!r} of JSON is not one that Spark reads: {', '.join(DECODED)}"]
    if options.get("multiline", "").lower() == "true":
        return []
    if encoding.upper() in ("UTF-16", "UTF-32"):
        return [f"encoding {encoding!r} does not define the byte order of each line: name it, as in '{encoding}LE'"]
    if "linesep" not in options:
        return [f"encoding {encoding!r} of JSON needs option 'lineSep' as well, such as '\\n'"]
    return []


def _similar(word: str, names: Mapping[str, object]) -> str:
    similar = difflib.get_close_matches(word, names, n=1)
    if similar:
        return f"; did you mean {similar[0]!r}?"
    return f"; known are {', '.join(names)}"
