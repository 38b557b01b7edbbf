"""A source of files in a folder: each is read exactly once, in any order or in order of names."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tidegate import seams
from tidegate.connectors.ddl import DdlError, parse_ddl
from tidegate.connectors.files.consumed import ConsumedFiles
from tidegate.connectors.files.fingerprints import Fingerprint, fingerprint
from tidegate.connectors.files.folder import Folder, Pattern, is_ignored, missing_folder, open_folder
from tidegate.connectors.files.formats.exact_values import is_read_as_text
from tidegate.connectors.files.formats.json_lines import DECODED
from tidegate.connectors.files.formats.utf8 import is_utf8
from tidegate.connectors.files.highest import highest_micros
from tidegate.connectors.files.reading import no_rows_of, read_files
from tidegate.connectors.files.template import fill_in, fixed_folder, is_template, template_problems
from tidegate.connectors.source import Planned, Source, SourceContext
from tidegate.delta.files.access import unavailable
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import Place, is_url, shared_uri
from tidegate.records.records import Amount, Json, Lag, Unread
from tidegate.spark.storage.exact_files import unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Files", "files_problems", "format_of", "option_problems"]


MAX_LISTED_NAMES = 20
"""File names in one message."""

WEIGHED = 1000
"""Waiting files whose sizes and times are looked at. There may be very many, and a plan must not wait for them."""

LOOKS_AT_ONCE = 16
"""Files of an object store that are opened at the same time: each takes a while to answer."""


class Files(Source):
    """JSON lines, CSV or Parquet files, found by a pattern and read in ranges of whole files.

    Files("landing/orders/*.json", schema="order_id long, country string, at timestamp")
    Files("landing/orders/{start:%Y-%m-%d}/*.json", schema="…")        reads by the run's data interval

    pattern: a path, relative to the pipeline's place; `*`, `?`, `[abc]` within a name, `**` for folders at any
        depth. Names that begin with `_` or `.`, or end in .tmp, .crc or .inprogress, are ignored. With {start:…} or
        {end:…} in it (the interval's moments in UTC, as strftime writes them), each run reads all files of its
        interval, however often the interval is processed; order and bounds then have no effect.
    format: json, csv or parquet. None: the suffix decides.
    schema: the columns as DDL. A Parquet file that lacks one is refused; columns that only the file has are left out.
    order: "arrival": all files that were not read before, whatever their names, smaller names first. "name": strictly
        in order of names, for producers whose names rise: a file that appears later with a smaller name than the last
        one read is not read, and the pipeline is unhealthy until the file is removed or the order is "arrival". The
        order may be changed at any time: every position knows each file that was read, so none is read twice.
    max_files, max_bytes: bounds of one checkpoint; at least one file is always taken.
    on_corrupt: "refuse" fails the checkpoint at the first malformed record and names file and record; "keep"
        adds a column `_corrupt_record` with the record's text, null for good ones. JSON and CSV only. Either way, a
        record is one row. It is also malformed if it has a decimal with more places than its column, a time beyond the
        year 9999 (a number is taken for seconds), bytes that are not text (in the text that is kept each of them is
        written as \\xE8), or anything after a JSON record on its line.
    options: options of Spark's reader, such as {"header": "true"} for CSV.
    min_age: seconds since a file's last change before it is taken, for producers that write in place. It only delays:
        it never causes a file to be read twice or skipped. Without it no clock is used.
    missing_columns: "refuse" or "null": what to do with a Parquet file that lacks a column.
    unknown_keys: "ignore" leaves out keys of JSON objects, also of nested ones, that the schema does not have; "refuse"
        makes such a record malformed (and so one with a renamed key). A key that differs from a missing column only in
        upper and lower case always does.
    required: an interval without files is not ready yet, and its run is tried again. Otherwise it has no rows; but an
        interval that had files before is not processed again without any, since these may have been archived.
    moved_from: the former name of the folder before the first `*`, if it was renamed: files that were read there are
        not read again here.

    Apart from min_age, and from how long files are said to have waited, no clock or modification time matters: a file
    is identified by its name and content, and a name is read once. New content under a name that was read is not
    noticed.
    """

    kind = "files"
    can_stop = True
    unit = "bytes"
    may_be_archived = True

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
        unknown_keys: Literal["ignore", "refuse"] = "ignore",
        required: bool = False,
        moved_from: str | None = None,
    ) -> None:
        self.pattern = pattern
        self.format = format or format_of(pattern)
        self.schema = schema
        self.order = order
        self.max_files = max_files
        self.max_bytes = max_bytes
        self.on_corrupt = on_corrupt
        self.options = {} if options is None else options
        self.min_age = min_age
        self.missing_columns = missing_columns
        self.unknown_keys = unknown_keys
        self.required = required
        self.moved_from = moved_from

    @property
    def by_interval(self) -> bool:
        """See Source."""
        return is_template(self.pattern)

    def columns_depend_on(self) -> str:
        """See Source."""
        return repr((self.format, self.schema, self.on_corrupt, sorted(self.options.items())))

    def describe(self) -> Json:
        """See Source."""
        return {
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
            "unknown_keys": self.unknown_keys,
            "required": self.required,
            **({"moved_from": self.moved_from} if self.moved_from is not None else {}),
        }

    def shared_uri(self, place: Place) -> str:
        """See Source: that of the folder below which all its files are."""
        return shared_uri(
            place.url(fixed_folder(self.pattern) if self.by_interval else Pattern.of(self.pattern).folder)
        )

    def problems(self) -> list[str]:
        """See Source."""
        return files_problems(self)

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """Plan the next files, each with its fingerprint. Files are read only for these fingerprints."""
        if self.by_interval:
            return self._plan_interval(context)
        pattern = Pattern.of(self.pattern)
        position = _Position.of(start, pattern, context, self.moved_from)
        folder = open_folder(context.place, pattern.folder)
        if not folder.exists():
            raise missing_folder(context.source, folder.url, started=start is not None)
        consumed = ConsumedFiles(position.seen, context.blobs)
        readable, passed_by = self._split_by_order(sorted(consumed.missing(folder.names(pattern))), position.after)
        if context.stop_position is not None:
            reached = ConsumedFiles(
                _Position.of(context.stop_position, pattern, context, self.moved_from).seen, context.blobs
            )
            later = set(reached.missing(readable))
            readable = [name for name in readable if name not in later]
        waiting = self._old_enough(folder, readable)
        chosen, deleted = self._choose(folder, waiting, context)
        more = len(chosen) + deleted < len(waiting)
        fingerprints, files = self._fingerprint_files(folder, chosen)
        end = start
        if files:
            after = max(position.after, files[-1]["name"])
            end = _Position(pattern.folder, after, consumed.write_with(fingerprints)).json
        return Planned(
            end=end,
            splits={"folder": pattern.folder, "files": files},
            is_empty=not files,
            has_more=more or len(waiting) < len(readable),
            summary=_summary(files, len(waiting) - deleted if more else None),
            amount=sum(file["size"] for file in files),
            unread=_describe_passed(passed_by, position.after),
            lag=_lag(folder, readable, set(chosen)),
        )

    def _plan_interval(self, context: SourceContext) -> Planned:
        """Plan all files of the interval, as they are now."""
        assert context.interval is not None
        common = open_folder(context.place, fixed_folder(self.pattern))
        if not common.exists():
            raise missing_folder(context.source, common.url, started=False)
        pattern = Pattern.of(fill_in(self.pattern, context.interval))
        folder = open_folder(context.place, pattern.folder)
        names = sorted(folder.names(pattern)) if folder.exists() else []
        ready = self._old_enough(folder, names)
        if len(ready) < len(names) or (self.required and not names):
            shortage = f"{len(names) - len(ready)} files younger than min_age" if names else "no files yet"
            raise Unavailable(
                f"source {context.source!r}: {folder.url} has {shortage} for interval {context.interval}",
                expected="all files of an interval before its run" + (" (required=True)" if not names else ""),
                help="the next attempt looks again; schedule the run later if files regularly arrive later than this",
                reason="INTERVAL_NOT_READY",
            )
        _, files = self._fingerprint_files(folder, names)
        splits = {"folder": pattern.folder, "files": files}
        return Planned(end=None, splits=splits, is_empty=not files, summary=_summary(files))

    def _fingerprint_files(self, folder: Folder, names: list[str]) -> tuple[dict[str, Fingerprint], list[Json]]:
        """Return the fingerprints of files, and what a plan records of them. Raise Invalid if Spark cannot read one.

        Files that were deleted since they were listed are left out, as they were never planned.
        """
        fingerprints = {name: content for name, content in _fingerprint_all(folder, names).items() if content}
        _refuse_unreadable(folder, fingerprints)
        if self.format == "parquet":
            _refuse_no_parquet(folder, fingerprints)
        files = [{"name": name, "size": content.size, "sha": content.sha} for name, content in fingerprints.items()]
        return fingerprints, files

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        """Check that every file is as planned and has the columns of the schema. Parquet files record their number of
        rows."""
        from tidegate.connectors.files.formats.headers import check_contents

        folder = open_folder(context.place, splits["folder"])
        fingerprints = _fingerprint_all(folder, [file["name"] for file in splits["files"]])
        changes = [change for file in splits["files"] if (change := _change(file, fingerprints[file["name"]]))]
        if changes:
            more = f"\n  … and {len(changes) - MAX_LISTED_NAMES} more" if len(changes) > MAX_LISTED_NAMES else ""
            raise Invalid(
                f"source {context.source!r}: {len(changes)} of {len(splits['files'])} planned file(s) in "
                f"{folder.url} changed:" + "".join(f"\n  {change}" for change in changes[:MAX_LISTED_NAMES]) + more,
                expected="files that stay as they were when the checkpoint was planned",
                help="put them back as they were and try again; or let this checkpoint be aborted: the next plan takes "
                "the files as they are then, and skips those that no longer exist",
                reason="SOURCE_CHANGED",
            )
        rows = check_contents(self, folder, [file["name"] for file in splits["files"]], context)
        size = sum(file["size"] for file in splits["files"])
        return Amount(rows=rows if splits["files"] else 0, bytes=size, files=len(splits["files"]))

    def max_event_time(self, column: str, splits: Json, context: SourceContext) -> int | None:
        """See Source: known from the footers of Parquet files."""
        types = {field.name: field.type for field in parse_ddl(self.schema)}
        if self.format != "parquet" or types.get(column) != "timestamp":
            return None
        folder = open_folder(context.place, splits["folder"])
        return highest_micros(folder, [file["name"] for file in splits["files"]], column)

    def files(self, splits: Json) -> list[str]:
        """See Source: names relative to the pattern's folder."""
        return [file["name"] for file in splits["files"]]

    def no_rows(self, spark: SparkSession) -> DataFrame:
        return no_rows_of(spark, self)

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """Return the rows of exactly the planned files."""
        folder = open_folder(context.place, splits["folder"])
        return read_files(spark, self, folder, [file["name"] for file in splits["files"]], context)

    def covers(self, position: Json | None, other: Json | None, context: SourceContext) -> bool:
        """See Source."""
        if other is None or position == other:
            return True
        read = ConsumedFiles(position["seen"] if position is not None else [], context.blobs)
        return read.is_superset_of(ConsumedFiles(other["seen"], context.blobs))

    def missing_input(self, start: Json | None, end: Json | None, context: SourceContext) -> list[str]:
        """See Source: positions know how many files were read, and of each file in the folder whether it was."""
        if end is None or start == end or self.by_interval:
            return []
        pattern = Pattern.of(self.pattern)
        position = _Position.of(end, pattern, context, self.moved_from)
        folder = open_folder(context.place, pattern.folder)
        names = folder.names(pattern) if folder.exists() else []
        before = ConsumedFiles(start["seen"] if start is not None else [], context.blobs)
        read = ConsumedFiles(position.seen, context.blobs)
        unread_then = before.missing(names)
        still_there = len(unread_then) - len(read.missing(unread_then))
        count = len(read) - len(before) - still_there
        if count <= 0:
            return []
        return [f"{count:,} of {len(read) - len(before):,} files that were read are not in {folder.url} any more"]

    def _split_by_order(self, unread: list[str], after: str) -> tuple[list[str], list[str]]:
        """Return the names that may be read next, in order, and those that the order by name has passed."""
        if self.order == "arrival" or not after:
            return unread, []
        return [name for name in unread if name > after], [name for name in unread if name <= after]

    def _old_enough(self, folder: Folder, names: list[str]) -> list[str]:
        """Return the files that are at least `min_age` old. In order of names, no file overtakes a younger one."""
        if not self.min_age:
            return names
        now, old = seams.now().timestamp(), []
        for name in names:
            file = folder.stat(name)
            if file is None:
                continue  # deleted since it was listed
            if abs(now - file.modified) >= self.min_age:
                old.append(name)
            elif self.order == "name" and not self.by_interval:
                break
        return old

    def _choose(self, folder: Folder, waiting: list[str], context: SourceContext) -> tuple[list[str], int]:
        """Return as many files as the bounds allow, at least one, and how many were found deleted."""
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
    """The end of a plan: the last of all names consumed so far, and their set."""

    folder: str
    after: str
    seen: list[Json]

    @property
    def json(self) -> Json:
        return {"folder": self.folder, "after": self.after, "seen": self.seen}

    @staticmethod
    def of(start: Json | None, pattern: Pattern, context: SourceContext, moved_from: str | None) -> _Position:
        if start is None:
            return _Position(pattern.folder, "", [])
        if set(start) != {"folder", "after", "seen"}:
            raise Invalid(
                f"source {context.source!r} cannot continue from position {start!r}",
                expected="a position of a Files source",
                help="give the source another name, so that it starts from scratch, or put the former source back",
                reason="FOREIGN_POSITION",
            )
        if moved_from is not None and start["folder"] == Pattern.of(f"{moved_from.rstrip('/')}/*").folder:
            start = start | {"folder": pattern.folder}
        if start["folder"] != pattern.folder:
            raise Invalid(
                f"source {context.source!r}: the pattern now starts from folder {pattern.folder!r}, but files were "
                f"read from {start['folder']!r} so far",
                expected="the same folder before the first glob: files are remembered by names relative to it",
                help=f"put the pattern back; or, if the same files are there now, set moved_from={start['folder']!r}: "
                "those that were read are not read again; or, to read all of the new folder, give the source another "
                "name, and drop the old one's position with the setting allow_non_restored_state, once",
                reason="FOLDER_CHANGED",
            )
        return _Position(**start)


def _lag(folder: Folder, unread: list[str], chosen: set[str]) -> Lag:
    """Return how much waits besides the files that were chosen. Of very many files, some are looked at."""
    waiting = [name for name in unread if name not in chosen]
    step = -(-len(waiting) // WEIGHED) or 1
    found = [file for file in map(folder.stat, waiting[::step]) if file is not None]
    if not found:
        return Lag(bytes=0, files=0)  # those that were listed are deleted since
    size = sum(file.size for file in found)
    oldest = seams.now().timestamp() - min(file.modified for file in found)
    files = len(found) if step == 1 else len(waiting)
    return Lag(files=files, bytes=round(size * files / len(found)), seconds=round(max(oldest, 0.0), 1))


def _fingerprint_all(folder: Folder, names: list[str]) -> dict[str, Fingerprint | None]:
    """Return fingerprints by name. None: there is no such file."""
    if folder.is_local:
        return {name: _fingerprint_one(folder, name) for name in names}
    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        return dict(zip(names, pool.map(lambda name: _fingerprint_one(folder, name), names), strict=True))


def _fingerprint_one(folder: Folder, name: str) -> Fingerprint | None:
    try:
        with folder.open(name) as stream:
            return fingerprint(stream)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unavailable(folder.full(name), error) from error


def _change(file: Json, current: Fingerprint | None) -> str | None:
    """Describe how a planned file has changed. None: it has not."""
    if current is None:
        return f"{file['name']!r} was deleted"
    if current.size < file["size"]:
        return f"{file['name']!r} was truncated: {current.size:,} bytes, {file['size']:,} planned"
    if current.size > file["size"]:
        return f"{file['name']!r} has grown: {current.size:,} bytes, {file['size']:,} planned"
    return f"{file['name']!r} was rewritten with the same size" if current.sha != file["sha"] else None


def _refuse_unreadable(folder: Folder, names: Iterable[str]) -> None:
    bad = [name for name in names if folder.is_local and unreadable(folder.full(name))]
    if bad:
        listed = ", ".join(repr(name) for name in bad[:MAX_LISTED_NAMES])
        raise Invalid(
            f"Spark cannot read {len(bad)} file(s) in {folder.url}: {listed}",
            expected=r"paths that hold a colon, or any of [ ] { } * ? \, but not both",
            help="rename these files",
            reason="BAD_FILE_NAME",
        )


def _refuse_no_parquet(folder: Folder, fingerprints: Mapping[str, Fingerprint]) -> None:
    bad = []
    for name, content in fingerprints.items():
        if content.size < 12 or content.head not in (b"PAR1", b"PARE") or content.head != content.tail:
            bad.append(f"{name!r} has no Parquet footer" if content.size else f"{name!r} is empty")
    if bad:
        raise Invalid(
            f"{len(bad)} file(s) in {folder.url} are not complete Parquet files: {'; '.join(bad[:MAX_LISTED_NAMES])}",
            expected="files that begin and end with PAR1",
            help="replace or remove them; let producers write to names that end in .tmp, and rename when complete",
            reason="NOT_PARQUET",
        )


def _summary(files: Iterable[Json], waiting: int | None = None) -> str:
    sizes = [file["size"] for file in files]
    alone = "1 file" if len(sizes) == 1 else f"{len(sizes):,} files"
    count = f"{len(sizes):,} of {waiting:,} files" if waiting is not None else alone
    return f"{count}, {_readable_size(sum(sizes))}" if sizes else "no new files"


def _describe_passed(names: list[str], after: str) -> Unread | None:
    if not names:
        return None
    first_names = ", ".join(repr(name) for name in names[:3]) + (", …" if len(names) > 3 else "")
    subject = "file has a name" if len(names) == 1 else "files have names"
    return Unread(
        count=len(names),
        what=f'{len(names):,} {subject} below the last one that was read, {after!r}, and order="name" never goes back: '
        f"{first_names}",
        help='to have them read, set order="arrival" (nothing is read twice); or move them out of the folder',
    )


def _readable_size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


_TEXT: Final = (
    "compression", "dateFormat", "enableDateTimeParsingFallback", "encoding", "charset", "lineSep", "locale",
    "multiLine", "timeZone", "timestampFormat", "timestampNTZFormat",
)  # fmt: skip

KNOWN: Final[dict[str, tuple[str, ...]]] = {
    "json": (
        *_TEXT, "allowBackslashEscapingAnyCharacter", "allowComments", "allowNonNumericNumbers",
        "allowNumericLeadingZeros", "allowSingleQuotes", "allowUnquotedControlChars", "allowUnquotedFieldNames",
        "maxNestingDepth", "maxNumLen", "maxStringLen", "prefersDecimal", "primitivesAsString",
    ),
    "csv": (
        *_TEXT, "charToEscapeQuoteEscaping", "comment", "delimiter", "emptyValue", "enforceSchema", "escape",
        "header", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "maxCharsPerColumn", "maxColumns",
        "nanValue", "negativeInf", "nullValue", "positiveInf", "quote", "sep", "unescapedQuoteHandling",
    ),
    "parquet": ("datetimeRebaseMode", "int96RebaseMode"),
}  # fmt: skip

RESERVED: Final[dict[str, str]] = {
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
    "columnPruning": "records are always judged as a whole",
    "ignoreCorruptFiles": "files are never skipped",
    "ignoreMissingFiles": "files are never skipped",
    "singleVariantColumn": "the schema is declared",
    "paths": "it is the pattern",
}


def option_problems(options: Mapping[Any, object], format: str | None) -> list[str]:
    """Return all problems of the options: unknown, not for this format, set by tidegate, or not a plain value."""
    problems = []
    allowed = {name.lower() for name in KNOWN.get(format or "", ())}
    reserved = {name.lower(): why for name, why in RESERVED.items()}
    keys: set[str] = set()
    for name, value in options.items():
        if not isinstance(name, str):
            problems.append(f"option {name!r} is not a string")
            continue
        key = name.lower()
        if key in keys:
            problems.append(f"option {name!r} is there twice (upper and lower case are ignored)")
        keys.add(key)
        if key in reserved:
            problems.append(f"option {name!r} cannot be set: {reserved[key]}")
        elif format in KNOWN and key not in allowed:
            problems.append(f"option {name!r} is unknown for {format}{_similar_option(name, KNOWN[format])}")
        if not isinstance(value, str | bool | int | float):
            problems.append(f"option {name!r} is {value!r}; it must be text, a number or a boolean")
    return problems


def _similar_option(name: str, allowed: tuple[str, ...]) -> str:
    lowered = {option.lower(): option for option in allowed}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""


FORMATS: Final = {
    "json": ("json", "jsonl", "ndjson"),
    "csv": ("csv",),
    "parquet": ("parquet",),
}
COMPRESSION: Final = ("gz", "bz2", "zst", "lz4", "snappy", "deflate")


def format_of(pattern: object) -> str | None:
    """Return the format that the suffix stands for, or None."""
    if not isinstance(pattern, str):
        return None
    suffixes = pattern.rsplit("/", 1)[-1].lower().split(".")[1:]
    while suffixes and suffixes[-1] in COMPRESSION:
        suffixes.pop()
    return next((name for name, endings in FORMATS.items() if suffixes and suffixes[-1] in endings), None)


def files_problems(source: Files) -> list[str]:
    """Return all problems of the declaration."""
    problems = _pattern_problems(source.pattern) + _interval_problems(source)
    if source.format is None and not problems:
        problems.append(
            f"the suffix of pattern {source.pattern!r} stands for no format; set format to json, csv or parquet"
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
        ("unknown_keys", source.unknown_keys, ("ignore", "refuse")),
    ):
        if value not in choices:
            problems.append(f"{name} is {value!r}; it must be {' or '.join(repr(choice) for choice in choices)}")
    for name, bound in (("max_files", source.max_files), ("max_bytes", source.max_bytes)):
        if not (bound is None and name == "max_bytes") and (
            isinstance(bound, bool) or not isinstance(bound, int) or bound < 1
        ):
            problems.append(f"{name} is {bound!r}; it must be a whole number, at least 1")
    if source.moved_from is not None and (not isinstance(source.moved_from, str) or not source.moved_from.strip("/ ")):
        problems.append(f"moved_from is {source.moved_from!r}; it must be the former folder of these files")
    if isinstance(source.min_age, bool) or not isinstance(source.min_age, int | float) or not 0 <= source.min_age < 1e9:
        problems.append(f"min_age is {source.min_age!r}; it must be a number of seconds, at least 0")
    return problems + _corrupt_problems(source, columns) + _option_problems(source, columns)


def _pattern_problems(pattern: object) -> list[str]:
    if not isinstance(pattern, str) or not pattern.strip() or "\0" in pattern:
        return [f"pattern is {pattern!r}; it must be a path like 'landing/orders/*.json'"]
    if pattern.endswith("/"):
        return [f"pattern {pattern!r} names a folder; name the files in it, like '{pattern}*.json'"]
    if "://" in pattern and not is_url(pattern) and not pattern.startswith("file://"):
        return [f"pattern {pattern!r} has an unknown scheme; write a path, or a URL like s3://bucket/folder/*.json"]
    problems = []
    parts = Pattern.of(pattern).parts
    if not parts or ".." in parts:
        problems.append(f"pattern {pattern!r} leads out of its folder: '..' may only stand before the first glob")
    for part in parts:
        if "**" in part and part != "**":
            problems.append(f"pattern {pattern!r}: '**' must stand alone between slashes")
        if is_ignored(part) and part != "..":
            problems.append(f"pattern {pattern!r}: names like {part!r} are hidden or temporary, and never read")
    return problems


def _interval_problems(source: Files) -> list[str]:
    if not is_template(source.pattern):
        return (
            ["required is for patterns with {start:…}: it says that an interval has files"] if source.required else []
        )
    problems = template_problems(source.pattern)
    if source.max_bytes is not None or source.max_files != 1000:
        problems.append(
            "max_files and max_bytes have no effect with {start:…} in the pattern: an interval is read whole"
        )
    return problems


def _corrupt_problems(source: Files, columns: Mapping[str, str]) -> list[str]:
    if source.on_corrupt != "keep":
        return []
    if source.format == "parquet":
        return ["on_corrupt='keep' is for JSON and CSV: a Parquet file is readable as a whole or not at all"]
    if "_corrupt_record" in columns:
        return ["on_corrupt='keep' adds the column _corrupt_record by itself; take it out of the schema"]
    return []


def _option_problems(source: Files, columns: Mapping[str, str]) -> list[str]:
    if not isinstance(source.options, Mapping):
        return [f"options is {source.options!r}; it must be a mapping like {{'header': 'true'}}"]
    problems = option_problems(source.options, source.format)
    if any(str(name).lower() == "locale" for name in source.options) and source.format != "parquet":
        problems += [
            f"column {name!r} is {kind}, which cannot be combined with option 'locale': decimals of 38 digits are "
            f"read as text; declare 37 digits at most, or remove the option"
            for name, kind in columns.items()
            if is_read_as_text(kind)
        ]
    return problems or (_encoding_problems(source) if source.format == "json" else [])


def _encoding_problems(source: Files) -> list[str]:
    """Return the problems of the encoding of JSON: what Spark's reader refuses, and what nobody can decode."""
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
        return [f"encoding {encoding!r} does not tell the order of bytes of each line: name it, as in '{encoding}LE'"]
    if "linesep" not in options:
        return [f"encoding {encoding!r} of JSON needs option 'lineSep' as well, such as '\\n'"]
    return []


def _similar(word: str, names: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"
