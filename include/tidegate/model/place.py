"""Where data lies: turns the paths that users write into absolute ones, and holds storage options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.errors import Invalid

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]+://")


@dataclass(frozen=True)
class Place:
    """The folder that relative paths of sources and sinks start from, and how to log in there.

    Storage options may hold secrets: they are never written to a record and never shown.
    """

    base: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def url(self, path: str) -> str:
        """`path` as an absolute local path or a URL."""
        if not path or "\0" in path:
            raise Invalid(f"path {path!r} is not usable", expected="a path or URL", reason="BAD_PATH")
        if path.startswith("file://"):
            return path.removeprefix("file://")
        if is_url(path):
            return path.rstrip("/")
        if is_url(self.base) and not path.startswith("/"):
            return f"{self.base.rstrip('/')}/{path.rstrip('/')}"
        return str(Path(self.base, path))


def is_url(path: str) -> bool:
    """Whether `path` names an object store, not a local folder."""
    return bool(_SCHEME.match(path)) and not path.startswith("file://")
