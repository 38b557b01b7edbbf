"""Who gives a command, and whether they mean it."""

from __future__ import annotations

import getpass
import os
import socket
import sys

from tidegate.cli.output import Output
from tidegate.errors import Invalid, Rejected

__all__ = ["confirm", "who"]


def who() -> str:
    """For records: user and machine. In a container the user may have no name."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return f"{user} on {socket.gethostname()}"


def confirm(question: str, out: Output, *, yes: bool) -> None:
    """Go on only if the person at the terminal says so; who is at none has to say so beforehand, with --yes."""
    if yes:
        return
    if not out.terminal or not sys.stdin.isatty():
        raise Invalid(
            question, expected="--yes, where nobody can be asked", help="look first, then repeat it with --yes"
        )
    out.line(f"{question} [y/N]", "bold")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Rejected("nothing was changed", help="answer y, or give --yes, to have it done", reason="NOT_CONFIRMED")
