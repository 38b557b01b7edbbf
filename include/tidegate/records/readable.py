"""Converts bytes that should be text into readable text, without losing any.

Each byte that is not text is written as an escape of four characters, such as \\xE8. A backslash before an x is then
written as \\x5C, so that it is not taken for an escape.
"""

from __future__ import annotations

import re

__all__ = ["readable_text"]


def readable_text(data: bytes, encoding: str = "utf-8") -> tuple[str, bool]:
    """Return bytes as text, and whether all of them are text in this encoding."""
    try:
        return data.decode(encoding), True
    except UnicodeError:
        text = data.replace(b"\\x", b"\\x5Cx").decode(encoding, "backslashreplace")
        return re.sub(r"\\x[0-9a-f]{2}", lambda byte: "\\x" + byte[0][2:].upper(), text), False
