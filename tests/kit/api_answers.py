"""Answers of the API, held against their types."""

from __future__ import annotations

from typing import Any

import msgspec


def check_answer(content: bytes, kind: Any) -> None:
    """An answer has exactly the fields and values of its type: read as it and written again, it is the same."""
    assert msgspec.json.encode(msgspec.json.decode(content, type=kind)) == content
