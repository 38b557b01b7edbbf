"""What is wrong with a Files declaration, all at once, without touching storage or Spark."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tidegate.model.place import is_url
from tidegate.sources.ddl import DdlError, parse_ddl
from tidegate.sources.exact import is_read_as_text
from tidegate.sources.folder import Pattern, is_ignored
from tidegate.sources.template import is_template, template_problems

if TYPE_CHECKING:
    from tidegate.sources.files import Files

__all__ = ["files_problems", "format_of", "option_problems"]


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
