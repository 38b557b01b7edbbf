"""Files that others put into a folder: each is read exactly once, whatever its name; by choice, in order of names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tidegate import seams
from tidegate.delta.files.access import unavailable
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import is_url
from tidegate.records.records import Amount, Json, Unread
from tidegate.sources.base import Planned, Source, SourceContext, least
from tidegate.sources.ddl import DdlError, parse_ddl
from tidegate.sources.files.consumed import ConsumedFiles
from tidegate.sources.files.exact_values import is_read_as_text
from tidegate.sources.files.fingerprints import Fingerprint, fingerprint
from tidegate.sources.files.folder import Folder, Pattern, is_ignored, missing_folder, open_folder
from tidegate.sources.files.reading import read_files, unreadable
from tidegate.sources.highest import highest_micros
from tidegate.sources.template import filled, fixed_folder, is_template, template_problems

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Files", "files_problems", "format_of", "option_problems"]


SHOWN = 20
"""File names in one message."""

LOOKS_AT_ONCE = 16
"""An object store takes its time for each file."""


class Files(Source):
    """JSON lines, CSV or Parquet files, found by a pattern and read in ranges of whole files.

    Files("landing/orders/*.json", schema="order_id long, country string, at timestamp")
    Files("landing/orders/{start:%Y-%m-%d}/*.json", schema="…")        reads by the run's data interval

    pattern: a path, relative to the pipeline's place; `*`, `?`, `[abc]` within a name, `**` for folders at any
        depth. Names that begin with `_` or `.`, or end in .tmp, .crc or .inprogress, are ignored. With {start:…} or
        {end:…} in it (the interval's moments in UTC, as strftime writes them), each run reads all files of its
        interval, however often it is made; order and bounds mean nothing then.
    format: json, csv or parquet; None: told by the suffix.
    schema: the columns as DDL. Parquet: a file that lacks one is refused, others are left out.
    order: "arrival": whatever was not read before, whatever its name; smaller names first. "name": strictly in order
        of names, for producers whose names rise: a file that turns up later with a smaller name than the last one
        read is not read, and the pipeline is not well until it is gone or the order is "arrival". It may be changed
        at any time: every position knows each file that was read, so none is read twice.
    max_files, max_bytes: bounds of one checkpoint; at least one file is always taken.
    on_corrupt: "refuse" fails the checkpoint at the first malformed record and names file and record; "keep"
        adds a column `_corrupt_record` with the record's text, null for good ones. JSON and CSV only. Malformed is
        also a decimal with more places than its column has, a moment beyond the year 9999 (a number is taken for
        seconds), bytes that are no text, and whatever stands behind a JSON record on its line.
    options: options of Spark's reader, such as {"header": "true"} for CSV.
    min_age: seconds since a file's last change before it is taken, for producers that write in place. Only
        with it is any clock looked at; it delays, and never decides what is read twice or not at all.
    missing_columns: "refuse" or "null": what to do with a Parquet file that lacks a column.
    unknown_keys: keys of JSON objects, nested ones, too, that the schema does not have are left out, or with "refuse"
        make a record malformed (so does a key that was renamed). One that is a missing column but for upper and lower
        case always does.
    required: an interval without files is not ready yet: its run is tried again. Otherwise it has no rows; but one
        that was made of files before is not made again of none, for these may have been archived.
    moved_from: the folder before the first `*` in which these files were until now, if it was renamed: what was read
        there is not read again here.

    No clock or modification time matters otherwise: a file is what its name and its content are, and a name is read
    once. What is put under a name that was read is not noticed.
    """

    kind = "files"
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

    def problems(self) -> list[str]:
        """See Source."""
        return files_problems(self)

    def plan(self, start: Json | None, context: SourceContext) -> Planned:
        """The next files, each with its fingerprint. Reads no file for more than that."""
        if self.by_interval:
            return self._plan_interval(context)
        pattern = Pattern.of(self.pattern)
        position = _Position.of(start, pattern, context, self.moved_from)
        folder = open_folder(context.place, pattern.folder)
        if not folder.exists():
            raise missing_folder(context.source, folder.url, started=start is not None)
        seen = ConsumedFiles(position.seen, context.blobs)
        ahead, passed_by = self._in_order(seen.missing(folder.names(pattern)), position.after)
        waiting = self._old_enough(folder, ahead)
        cut, gone = self._cut(folder, waiting, least([self.max_bytes, context.at_most]))
        more = len(cut) + gone < len(waiting)
        looks, files = self._looked_at(folder, cut)
        end = start
        if files:
            end = _Position(pattern.folder, max(position.after, files[-1]["name"]), seen.with_added(looks)).json
        return Planned(
            end=end,
            splits={"folder": pattern.folder, "files": files},
            empty=not files,
            more=more or len(waiting) < len(ahead),
            summary=_summary(files, len(waiting) - gone if more else None),
            amount=sum(file["size"] for file in files),
            unread=_passed_by(passed_by, position.after),
        )

    def _plan_interval(self, context: SourceContext) -> Planned:
        """All files of the interval, as they are now."""
        assert context.interval is not None
        common = open_folder(context.place, fixed_folder(self.pattern))
        if not common.exists():
            raise missing_folder(context.source, common.url, started=False)
        pattern = Pattern.of(filled(self.pattern, context.interval))
        folder = open_folder(context.place, pattern.folder)
        found = folder.names(pattern) if folder.exists() else []
        ready = self._old_enough(folder, found)
        if len(ready) < len(found) or (self.required and not found):
            what = f"{len(found) - len(ready)} files that are still young" if found else "no files yet"
            raise Unavailable(
                f"source {context.source!r}: {folder.url} has {what} for interval {context.interval}",
                expected="all files of an interval before it is made" + (" (required=True)" if not found else ""),
                help="it is tried again; let the schedule begin later if files come later than that",
                reason="INTERVAL_NOT_READY",
            )
        _, files = self._looked_at(folder, found)
        splits = {"folder": pattern.folder, "files": files}
        return Planned(end=None, splits=splits, empty=not files, summary=_summary(files))

    def _looked_at(self, folder: Folder, names: list[str]) -> tuple[dict[str, Fingerprint], list[Json]]:
        """Fingerprints of files that Spark can read. What was deleted since it was listed was never planned."""
        looks = {name: look for name, look in _looks(folder, names).items() if look}
        _refuse_unreadable(folder, looks)
        if self.format == "parquet":
            _refuse_no_parquet(folder, looks)
        return looks, [{"name": name, "size": look.size, "sha": look.sha} for name, look in looks.items()]

    def verify(self, splits: Json, context: SourceContext) -> Amount:
        """Every file is still what was planned, and holds the columns that the schema asks for. Parquet files tell how
        many rows they have."""
        from tidegate.sources.files.headers import check_contents

        folder = open_folder(context.place, splits["folder"])
        looks = _looks(folder, [file["name"] for file in splits["files"]])
        changes = [change for file in splits["files"] if (change := _change(file, looks[file["name"]]))]
        if changes:
            more = f"\n  … and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
            raise Invalid(
                f"source {context.source!r}: {len(changes)} of {len(splits['files'])} planned file(s) in "
                f"{folder.url} changed:" + "".join(f"\n  {change}" for change in changes[:SHOWN]) + more,
                expected="files that stay as they were when the checkpoint was planned",
                help="put them back as they were and try again; or let this checkpoint be aborted: the next plan takes "
                "the files as they are then, and skips those that are gone",
                reason="SOURCE_CHANGED",
            )
        rows = check_contents(self, folder, [file["name"] for file in splits["files"]], context)
        size = sum(file["size"] for file in splits["files"])
        return Amount(rows=rows if splits["files"] else 0, bytes=size, files=len(splits["files"]))

    def highest(self, column: str, splits: Json, context: SourceContext) -> int | None:
        """Parquet files say so in their footers."""
        kinds = {each.name: each.type for each in parse_ddl(self.schema)}
        if self.format != "parquet" or kinds.get(column) != "timestamp":
            return None
        folder = open_folder(context.place, splits["folder"])
        return highest_micros(folder, [file["name"] for file in splits["files"]], column)

    def files(self, splits: Json) -> list[str]:
        """Below the pattern's folder."""
        return [file["name"] for file in splits["files"]]

    def read(self, spark: SparkSession, splits: Json, context: SourceContext) -> DataFrame:
        """The rows of exactly the planned files."""
        folder = open_folder(context.place, splits["folder"])
        return read_files(spark, self, folder, [file["name"] for file in splits["files"]], context)

    def _in_order(self, unread: list[str], after: str) -> tuple[list[str], list[str]]:
        """What may be read next, in order; and what the order by name has passed by."""
        if self.order == "arrival" or not after:
            return unread, []
        return [name for name in unread if name > after], [name for name in unread if name <= after]

    def _old_enough(self, folder: Folder, names: list[str]) -> list[str]:
        """Those that are not written to any more, as far as `min_age` tells. By name, none overtakes a young one."""
        if not self.min_age:
            return names
        now, old = seams.now().timestamp(), []
        for name in names:
            file = folder.look(name)
            if file is None:
                continue  # deleted since it was listed
            if abs(now - file.modified) >= self.min_age:
                old.append(name)
            elif self.order == "name" and not self.by_interval:
                break
        return old

    def _cut(self, folder: Folder, waiting: list[str], most: int | None) -> tuple[list[str], int]:
        """As many as the bounds allow, at least one; and how many on the way were deleted. most: bytes."""
        cut: list[str] = []
        total = gone = 0
        for name in waiting:
            if len(cut) == self.max_files:
                break
            file = folder.look(name)
            if file is None:
                gone += 1
                continue
            total += file.size
            if cut and most is not None and total > most:
                break
            cut.append(name)
        return cut, gone


@dataclass(frozen=True)
class _Position:
    """Where a plan ended: the last of all names consumed so far, and their set."""

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
                f"source {context.source!r} cannot go on from position {start!r}",
                expected="a position of a Files source",
                help="give the source another name, so that it starts afresh, or put the former source back",
                reason="FOREIGN_POSITION",
            )
        if moved_from is not None and start["folder"] == Pattern.of(f"{moved_from.rstrip('/')}/*").folder:
            start = start | {"folder": pattern.folder}
        if start["folder"] != pattern.folder:
            raise Invalid(
                f"source {context.source!r}: the pattern now starts from folder {pattern.folder!r}, but files were "
                f"read from {start['folder']!r} so far",
                expected="the same folder before the first glob: what was read is remembered by names relative to it",
                help=f"put the pattern back; or, if the same files lie there now, say moved_from={start['folder']!r}: "
                "those that were read are not read again; or, to read all of the new folder, give the source another "
                "name, and let go of the old one with the setting allow_non_restored_state, once",
                reason="FOLDER_CHANGED",
            )
        return _Position(**start)


def _looks(folder: Folder, names: list[str]) -> dict[str, Fingerprint | None]:
    """Fingerprints by name; None: there is no such file."""
    if folder.is_local:
        return {name: _look(folder, name) for name in names}
    with ThreadPoolExecutor(LOOKS_AT_ONCE) as pool:
        return dict(zip(names, pool.map(lambda name: _look(folder, name), names), strict=True))


def _look(folder: Folder, name: str) -> Fingerprint | None:
    try:
        with folder.open(name) as stream:
            return fingerprint(stream)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unavailable(folder.full(name), error) from error


def _change(file: Json, look: Fingerprint | None) -> str | None:
    """What happened to a planned file, or None."""
    if look is None:
        return f"{file['name']!r} was deleted"
    if look.size < file["size"]:
        return f"{file['name']!r} was truncated: {look.size:,} bytes, {file['size']:,} planned"
    if look.size > file["size"]:
        return f"{file['name']!r} has grown: {look.size:,} bytes, {file['size']:,} planned"
    return f"{file['name']!r} was rewritten with the same size" if look.sha != file["sha"] else None


def _refuse_unreadable(folder: Folder, names: Iterable[str]) -> None:
    bad = [name for name in names if folder.is_local and unreadable(folder.full(name))]
    if bad:
        raise Invalid(
            f"Spark cannot read {len(bad)} file(s) in {folder.url}: {', '.join(repr(name) for name in bad[:SHOWN])}",
            expected=r"paths that hold a colon, or any of [ ] { } * ? \, but not both",
            help="rename these files",
            reason="BAD_FILE_NAME",
        )


def _refuse_no_parquet(folder: Folder, looks: Mapping[str, Fingerprint]) -> None:
    bad = [
        f"{name!r} is empty" if not look.size else f"{name!r} has no Parquet footer"
        for name, look in looks.items()
        if look.size < 12 or look.head not in (b"PAR1", b"PARE") or look.head != look.tail
    ]
    if bad:
        raise Invalid(
            f"{len(bad)} file(s) in {folder.url} are no complete Parquet files: {'; '.join(bad[:SHOWN])}",
            expected="files that begin and end with PAR1",
            help="replace or remove them; let producers write names that end in .tmp, and rename when done",
            reason="NOT_PARQUET",
        )


def _summary(files: Iterable[Json], of: int | None = None) -> str:
    sizes = [file["size"] for file in files]
    count = f"{len(sizes):,} of {of:,} files" if of is not None else f"{len(sizes):,} files"
    return f"{count}, {_bytes(sum(sizes))}" if sizes else "no new files"


def _passed_by(names: list[str], after: str) -> Unread | None:
    if not names:
        return None
    shown = ", ".join(repr(name) for name in names[:3]) + (", …" if len(names) > 3 else "")
    those = "file has a name" if len(names) == 1 else "files have names"
    return Unread(
        count=len(names),
        what=f'{len(names):,} {those} below the last one that was read, {after!r}, and order="name" never goes back: '
        f"{shown}",
        help='to have them read, set order="arrival" (nothing is read twice); or move them out of the folder',
    )


def _bytes(count: float) -> str:
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

OURS: Final[dict[str, str]] = {
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
    """What is wrong with the options: unknown, not for this format, ours to set, no plain value."""
    found = []
    known = {name.lower() for name in KNOWN.get(format or "", ())}
    ours = {name.lower(): why for name, why in OURS.items()}
    seen: set[str] = set()
    for name, value in options.items():
        if not isinstance(name, str):
            found.append(f"option {name!r} is no string")
            continue
        key = name.lower()
        if key in seen:
            found.append(f"option {name!r} is there twice (upper and lower case are alike)")
        seen.add(key)
        if key in ours:
            found.append(f"option {name!r} cannot be set: {ours[key]}")
        elif format in KNOWN and key not in known:
            found.append(f"option {name!r} is unknown for {format}{_similar_option(name, KNOWN[format])}")
        if not isinstance(value, str | bool | int | float):
            found.append(f"option {name!r} is {value!r}; it must be text, a number or a boolean")
    return found


def _similar_option(name: str, known: tuple[str, ...]) -> str:
    lowered = {option.lower(): option for option in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""


FORMATS: Final = {
    "json": ("json", "jsonl", "ndjson"),
    "csv": ("csv",),
    "parquet": ("parquet",),
}
COMPRESSION: Final = ("gz", "bz2", "zst", "lz4", "snappy", "deflate")


def format_of(pattern: object) -> str | None:
    """The format that a suffix stands for, or None."""
    if not isinstance(pattern, str):
        return None
    suffixes = pattern.rsplit("/", 1)[-1].lower().split(".")[1:]
    while suffixes and suffixes[-1] in COMPRESSION:
        suffixes.pop()
    return next((name for name, known in FORMATS.items() if suffixes and suffixes[-1] in known), None)


def files_problems(source: Files) -> list[str]:
    """Every problem of the declaration."""
    found = _pattern_problems(source.pattern) + _interval_problems(source)
    if source.format is None and not found:
        found.append(f"the suffix of pattern {source.pattern!r} tells no format; say format='json', 'csv' or 'parquet'")
    elif source.format is not None and source.format not in FORMATS:
        found.append(f"format {source.format!r} is unknown{_similar(str(source.format), FORMATS)}")
    try:
        columns = {column.name.lower(): column.type for column in parse_ddl(source.schema)}
    except DdlError as error:
        found.append(f"schema {error}")
        columns = {}
    for name, value, known in (
        ("order", source.order, ("name", "arrival")),
        ("on_corrupt", source.on_corrupt, ("refuse", "keep")),
        ("missing_columns", source.missing_columns, ("refuse", "null")),
        ("unknown_keys", source.unknown_keys, ("ignore", "refuse")),
    ):
        if value not in known:
            found.append(f"{name} is {value!r}; it must be {' or '.join(repr(choice) for choice in known)}")
    for name, bound in (("max_files", source.max_files), ("max_bytes", source.max_bytes)):
        if not (bound is None and name == "max_bytes") and (
            isinstance(bound, bool) or not isinstance(bound, int) or bound < 1
        ):
            found.append(f"{name} is {bound!r}; it must be a whole number, at least 1")
    if source.moved_from is not None and (not isinstance(source.moved_from, str) or not source.moved_from.strip("/ ")):
        found.append(f"moved_from is {source.moved_from!r}; it must be the folder in which these files were before")
    if isinstance(source.min_age, bool) or not isinstance(source.min_age, int | float) or not 0 <= source.min_age < 1e9:
        found.append(f"min_age is {source.min_age!r}; it must be a number of seconds, at least 0")
    return found + _corrupt_problems(source, columns) + _option_problems(source, columns)


def _pattern_problems(pattern: object) -> list[str]:
    if not isinstance(pattern, str) or not pattern.strip() or "\0" in pattern:
        return [f"pattern is {pattern!r}; it must be a path like 'landing/orders/*.json'"]
    if pattern.endswith("/"):
        return [f"pattern {pattern!r} names a folder; name the files in it, like '{pattern}*.json'"]
    if "://" in pattern and not is_url(pattern) and not pattern.startswith("file://"):
        return [f"pattern {pattern!r} has an unknown scheme; write a path, or a URL like s3://bucket/folder/*.json"]
    found = []
    parts = Pattern.of(pattern).parts
    if not parts or ".." in parts:
        found.append(f"pattern {pattern!r} leads out of its folder: '..' may only stand before the first glob")
    for part in parts:
        if "**" in part and part != "**":
            found.append(f"pattern {pattern!r}: '**' must stand alone between slashes")
        if is_ignored(part) and part != "..":
            found.append(f"pattern {pattern!r}: names like {part!r} are hidden or temporary, and never read")
    return found


def _interval_problems(source: Files) -> list[str]:
    if not is_template(source.pattern):
        return (
            ["required is for patterns with {start:…}: it says that an interval has files"] if source.required else []
        )
    found = template_problems(source.pattern)
    if source.max_bytes is not None or source.max_files != 1000:
        found.append("max_files and max_bytes mean nothing in a pattern with {start:…}: an interval is read whole")
    return found


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
    found = option_problems(source.options, source.format)
    if any(str(name).lower() == "locale" for name in source.options) and source.format != "parquet":
        found += [
            f"column {name!r} is {kind}, which option 'locale' does not go together with: decimals of 38 digits are "
            f"read as text; declare 37 digits at most, or take the option out"
            for name, kind in columns.items()
            if is_read_as_text(kind)
        ]
    return found


def _similar(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"
