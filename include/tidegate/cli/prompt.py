"""The user who runs a command, and the confirmation of a command that cannot be undone."""

from __future__ import annotations

import sys

from tidegate.cli.output import Output
from tidegate.errors import Invalid, Rejected
from tidegate.execution.runs import user_and_machine

__all__ = ["confirm", "user_and_host"]


def user_and_host() -> str:
    """Return user and machine, for records."""
    return user_and_machine()


def confirm(question: str, out: Output, *, yes: bool) -> None:
    """Ask the user at the terminal, and raise Rejected without a yes. Without a terminal, --yes is required."""
    if yes:
        return
    if not out.terminal or not sys.stdin.isatty():
        raise Invalid(
            question,
            expected="--yes, because this is not a terminal",
            help="check first, then repeat it with --yes",
        )
    out.line(f"{question} [y/N]", "bold")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Rejected("nothing was changed", help="answer y, or pass --yes, to confirm", reason="NOT_CONFIRMED")
