"""Lets Arrow keep the memory of one table for the next one.

Arrow's allocator, mimalloc, returns memory to the system after ten milliseconds, and the system clears each page that
is used again. A gate that counts marks, finds repeated keys and rewrites files allocates as much memory several times
in a second: nearly half of its own processor time went into that.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Final

__all__ = ["load_arrow"]

_SETTING: Final = "MIMALLOC_PURGE_DELAY"
_MILLISECONDS: Final = "10000"


def load_arrow() -> None:
    """Import pyarrow so that its memory stays for ten seconds.

    The allocator reads its setting once, when it is loaded: a pyarrow that is imported already stays as it is. Child
    processes do not inherit the setting, because Spark's Python workers share a machine's memory with each other.
    """
    if "pyarrow" in sys.modules or _SETTING in os.environ:
        return
    os.environ[_SETTING] = _MILLISECONDS
    try:
        with contextlib.suppress(ImportError):  # whoever needs it says what is missing
            import pyarrow  # noqa: F401
    finally:
        del os.environ[_SETTING]
