"""Which options of Spark's readers a Files source passes on. Spark ignores an option that it does not know."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["option_problems"]

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
            found.append(f"option {name!r} is unknown for {format}{_similar(name, KNOWN[format])}")
        if not isinstance(value, str | bool | int | float):
            found.append(f"option {name!r} is {value!r}; it must be text, a number or a boolean")
    return found


def _similar(name: str, known: tuple[str, ...]) -> str:
    lowered = {option.lower(): option for option in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f"; did you mean {lowered[close[0]]!r}?" if close else ""
