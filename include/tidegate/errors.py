"""The five kinds of error, named after what the person who meets one has to do.

    TidegateError
    ├── Invalid       fix your input: a name, a setting, a path, a file, a pipeline
    ├── Unavailable   try again: storage, Spark or a lock did not answer
    ├── Fenced        stop: another attempt leads, or this work no longer counts
    ├── Rejected      wait or stop: a limit, a gate or a person says "not now" or "no"
    └── Corrupt       restore: a record or table is not what was written

Every error says what happened, what was expected and what to do next.
"""

from __future__ import annotations

__all__ = ["ENVIRONMENT", "Corrupt", "Fenced", "Invalid", "Rejected", "TidegateError", "Unavailable"]


ENVIRONMENT = frozenset(
    {
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
"""Reasons that say of the machine, not of the pipeline, that it cannot work: there is no Spark to work with."""


class TidegateError(Exception):
    """Base of all errors that tidegate raises on purpose.

    what: what happened, with the names and values involved.
    expected: what would have been right, if that is not plain from `what`.
    help: the next step for the person who reads it.
    reason: a stable code in capitals, for records, statistics and tests.
    """

    kind = "error"
    default_reason = "ERROR"

    def __init__(self, what: str, *, expected: str = "", help: str = "", reason: str = "") -> None:
        self.what = what
        self.expected = expected
        self.help = help
        self.reason = reason or self.default_reason
        super().__init__(what)

    @property
    def of_environment(self) -> bool:
        """Whether any pipeline would have failed there."""
        return self.reason in ENVIRONMENT

    def __str__(self) -> str:
        lines = [self.what]
        if self.expected:
            lines.append(f"  Expected: {self.expected}")
        if self.help:
            lines.append(f"  Help: {self.help}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.expected, self.help, self.reason)


def _rebuild(cls: type[TidegateError], what: str, expected: str, help: str, reason: str) -> TidegateError:
    return cls(what, expected=expected, help=help, reason=reason)


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
    """A limit, a gate or a person says wait or no. The message says which and until when."""

    kind = "rejected"
    default_reason = "REJECTED"
    wait_s: float | None = None
    """After how long it is worth asking again, if that is known."""


class Corrupt(TidegateError):
    """What is on storage is not what was written. Never worked around: restore or repair."""

    kind = "corrupt"
    default_reason = "CORRUPT"
