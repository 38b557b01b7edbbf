"""Bytes that should be text, as text that everybody can read: none is lost, and none stops a reader.

Each byte that is no text is written as \\xE8, the four characters. A backslash in front of an x is then written as
\\x5C, so that it is not taken for one.
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
