"""Where data lies: turns the paths that users write into absolute ones, and holds storage options."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.errors import Invalid
from tidegate.records.masking import has_login, without_logins

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FILE = re.compile(r"^file://", re.IGNORECASE)

LOCAL_WRITES = "spark.tidegate.localWrites"
"""A session's key: the Hadoop class that writes local files there, if it has a better one than Hadoop's own."""


@dataclass(frozen=True)
class Place:
    """The folder that relative paths of sources and sinks start from, and how to log in there.

    Storage options may hold secrets: they are never written to a record and never shown.
    """

    base: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    project: str | None = None
    """The project's folder, for what belongs to the code, such as suites. None: the same folder."""

    def url(self, path: str) -> str:
        """`path` as an absolute local path or a URL."""
        if is_url(check_path(path)):
            if has_login(path):
                raise _bad_path(path, "a URL without a password or a key: log in with the setting storage_options")
            return path.rstrip("/")
        if is_url(self.base) and not path.startswith("/") and not _FILE.match(path):
            return f"{self.base.rstrip('/')}/{path.rstrip('/')}"
        # Without "..", so that one table has one name: two sinks on one target are refused by it.
        return os.path.abspath(os.path.join(self.base, local_path(path)))

    def of_project(self, path: str) -> str:
        """`path` as an absolute one, where a relative one starts from the project's folder."""
        return Place(self.project or self.base).url(path)


def check_path(path: object) -> str:
    """Return `path` if a file could have it as its name; otherwise refuse it."""
    if not isinstance(path, str) or not path.strip() or any(ord(letter) < 32 for letter in path):
        raise _bad_path(path, "a path or URL without control characters")
    return path


def local_path(path: str) -> str:
    """A local path as the file system knows it: without file://, if it has that."""
    if not _FILE.match(path):
        return path
    bare = path[len("file://") :]
    if not bare.startswith("/"):
        raise _bad_path(path, "file:///absolute/path, with three slashes, or the path alone")
    return bare


def is_relative(path: str) -> bool:
    """Whether where `path` leads depends on the place that it starts from."""
    return not is_url(path) and not _FILE.match(path) and not path.startswith("/")


def is_url(path: str) -> bool:
    """Whether `path` names an object store, not a local folder."""
    return bool(_SCHEME.match(path)) and not _FILE.match(path)


def store_of(url: str) -> str:
    """The bucket or container, whose objects are all treated alike."""
    return "/".join(url.split("/")[:3])


def _bad_path(path: object, expected: str) -> Invalid:
    return Invalid(
        f"path {without_logins(repr(path))} is not usable",
        expected=expected,
        help="correct the path",
        reason="BAD_PATH",
    )
