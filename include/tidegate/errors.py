"""The five kinds of error, named after what the user has to do.

    TidegateError
    ├── Invalid       fix your input: a name, a setting, a path, a file, a pipeline
    ├── Unavailable   try again: storage, Spark or a lock did not answer
    ├── Fenced        stop: another attempt leads, or this work no longer counts
    ├── Rejected      wait or stop: a limit, a gate or a person says "not now" or "no"
    └── Corrupt       restore: a record or table differs from what was written

Every error says what happened, what was expected and what to do next. It appears in logs and notifications, for all
users who may see the pipeline, so it must not quote values of rows. `quoted` has these, for users who may read rows.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator

__all__ = [
    "ENVIRONMENT",
    "Corrupt",
    "Fenced",
    "Invalid",
    "Rejected",
    "TidegateError",
    "Unavailable",
    "name_of",
    "quoted_text",
    "reported_error",
    "trace_without_values",
]


ENVIRONMENT = frozenset(
    {
        "GATES_MISSING",
        "JARS_CORRUPT",
        "JARS_MISSING",
        "JAVA_MISSING",
        "OTHER_DISK",
        "PYSPARK_MISSING",
        "SPARK_HANGS",
        "SPARK_HOME",
        "SPARK_NO_ANSWER",
        "SPARK_PROVIDER_MISSING",
        "SPARK_START",
        "SPARK_STARTING",
        "SPARK_SUBMIT",
        "SPARK_TLS",
        "SPARK_TOKEN",
        "SPARK_UNREACHABLE",
    }
)
"""Reasons that concern the machine and not the pipeline: no Spark is available there."""


class TidegateError(Exception):
    """Base class of all errors that tidegate raises on purpose.

    what: the problem, with the names and values involved.
    expected: what would have been right, unless `what` makes this clear.
    help: the next step for the reader.
    reason: a stable code in capitals, for records, statistics and tests.
    quoted: the part of the text that quotes rows. It is in no record, log or str(); under Airflow it is an XCom of the
        task.
    """

    kind = "error"
    default_reason = "ERROR"

    def __init__(self, what: str, *, expected: str = "", help: str = "", reason: str = "", quoted: str = "") -> None:
        self.what = what
        self.expected = expected
        self.help = help
        self.reason = reason or self.default_reason
        self.quoted = quoted
        super().__init__(what)

    @property
    def of_environment(self) -> bool:
        """True if any pipeline would have failed on that machine."""
        return self.reason in ENVIRONMENT

    def __str__(self) -> str:
        lines = [self.what]
        if self.expected:
            lines.append(f"  Expected: {self.expected}")
        if self.help:
            lines.append(f"  Help: {self.help}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.expected, self.help, self.reason, self.quoted)


def _rebuild(
    cls: type[TidegateError], what: str, expected: str, help: str, reason: str, quoted: str = ""
) -> TidegateError:
    return cls(what, expected=expected, help=help, reason=reason, quoted=quoted)


class Invalid(TidegateError):
    """Fix your input. Nothing was written; trying again unchanged fails again."""

    kind = "invalid"
    default_reason = "INVALID"


class Unavailable(TidegateError):
    """Try again. Something outside did not answer; nothing that counts has been lost."""

    kind = "unavailable"
    default_reason = "UNAVAILABLE"


class Fenced(TidegateError):
    """Stop. Another attempt leads, or the checkpoint that this work was for is dead."""

    kind = "fenced"
    default_reason = "FENCED"


class Rejected(TidegateError):
    """Wait or stop. A limit, a gate or a person refuses; the message says which, and until when."""

    kind = "rejected"
    default_reason = "REJECTED"
    wait_s: float | None = None
    """Seconds after which a retry makes sense, if known."""


class Corrupt(TidegateError):
    """Restore or repair. The storage does not hold what was written; tidegate never works around that."""

    kind = "corrupt"
    default_reason = "CORRUPT"


def reported_error(error: Exception, help: str) -> TidegateError:
    """Wrap an unexpected error in a TidegateError. Used where one broken pipeline must not hide the others.

    help: where to find the traceback.
    """
    if isinstance(error, TidegateError):
        return error
    summary = f"{type(error).__name__}: {error}".splitlines()[0]
    return TidegateError(f"{summary}: this should not happen", help=help, reason="UNEXPECTED")


_OF_CODE = (ImportError, NameError, NotImplementedError, SyntaxError)
"""Exceptions whose messages are about code only. Any other message may quote a row."""


def name_of(error: BaseException) -> str:
    """Return an exception's type, the place where it was raised, and its message if that cannot quote a row."""
    if isinstance(error, TidegateError):
        return error.what
    if isinstance(error, _OF_CODE):
        message = " ".join(str(error).split())
    else:
        message = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        place = f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})"
    else:
        place = ""
    return f"{type(error).__name__}{': ' if message else ''}{message}{place}"


def quoted_text(error: BaseException) -> str:
    """Return what an exception says, for those who may read rows."""
    if isinstance(error, TidegateError):
        return error.quoted
    return f"{type(error).__name__}: {error}".rstrip(": ")


def trace_without_values(error: BaseException) -> str:
    """Return the traceback of an exception and of its causes, the first one first, without what may quote a row."""
    return "\nThis led to:\n".join(reversed(list(_traces(error))))


def _traces(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    last: BaseException | None = error
    while last is not None and id(last) not in seen:
        seen.add(id(last))
        yield "".join(traceback.format_tb(last.__traceback__)) + name_of(last)
        last = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
