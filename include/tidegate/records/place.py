"""The place of a pipeline's data: makes the paths that users write absolute, and holds the storage options."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.errors import Invalid
from tidegate.records.airflow_login import connector_options, is_airflow_login
from tidegate.records.masking import has_login, without_logins

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FILE = re.compile(r"^file://", re.IGNORECASE)
_S3 = re.compile(r"^s3[an]?://", re.IGNORECASE)

LOCAL_WRITES = "spark.tidegate.localWrites"
"""A session setting: the Hadoop class with which the session writes local files, if not Hadoop's default."""


@dataclass(frozen=True)
class Place:
    """The folder from which relative paths of sources and sinks start, and how to log in there.

    Storage options may hold secrets: they are never written to a record and never shown.
    """

    base: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    project: str | None = None
    """The project's folder, for files that belong to the code, such as suites. None: the base folder."""
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The setting `connections`: options by "NAME.option"."""

    def connection(self, name: str) -> dict[str, str]:
        """Return the options of a connection: one of the settings, or of Airflow's if the name begins with `airflow:`.
        Raise Invalid if it does not exist in the settings, Unavailable if Airflow does not find it."""
        if is_airflow_login(name):
            return connector_options(name)
        prefix = f"{name}."
        options = {}
        for key, text in self.connections.items():
            if key.startswith(prefix):
                options[key.removeprefix(prefix)] = text
        if not options:
            names = sorted({key.partition(".")[0] for key in self.connections})
            raise Invalid(
                f"connection {name!r} does not exist",
                expected=f"one of {', '.join(names)}" if names else "the setting `connections` to have it",
                help=f"add a table [connections.{name}] to tidegate.toml, or set TIDEGATE_CONNECTIONS to a JSON object "
                f'like {{"{name}": {{"password": "…"}}}}',
                reason="NO_CONNECTION",
            )
        return options

    def url(self, path: str) -> str:
        """Return `path` as an absolute local path or a URL."""
        if is_url(check_path(path)):
            if has_login(path):
                raise _bad_path(path, "a URL without a password or a key: log in with the setting storage_options")
            return path.rstrip("/")
        if is_url(self.base) and not path.startswith("/") and not _FILE.match(path):
            return f"{self.base.rstrip('/')}/{path.rstrip('/')}"
        # Without "..", so that each table has one name. By that name, a second sink on the same target is refused.
        return os.path.abspath(os.path.join(self.base, local_path(path)))

    def of_project(self, path: str) -> str:
        """Return `path` as an absolute one. A relative one starts from the project's folder."""
        return Place(self.project or self.base).url(path)


def check_path(path: object) -> str:
    """Return `path` if it can be the name of a file. Otherwise raise Invalid."""
    if not isinstance(path, str) or not path.strip() or any(ord(letter) < 32 for letter in path):
        raise _bad_path(path, "a path or URL without control characters")
    return path


def local_path(path: str) -> str:
    """Return a local path without its file:// prefix, if it has one."""
    if not _FILE.match(path):
        return path
    bare = path[len("file://") :]
    if not bare.startswith("/"):
        raise _bad_path(path, "file:///absolute/path, with three slashes, or the path alone")
    return bare


def is_relative(path: str) -> bool:
    """Return whether `path` depends on the place from which it starts."""
    return not is_url(path) and not _FILE.match(path) and not path.startswith("/")


def is_url(path: str) -> bool:
    """Return whether `path` names an object store, not a local folder."""
    return bool(_SCHEME.match(path)) and not _FILE.match(path)


def shared_uri(url: str) -> str:
    """Return an absolute path or URL in the usual form: file:///tables/revenue, and s3:// for all its variants."""
    if is_url(url):
        return _S3.sub("s3://", url)
    return f"file://{url}"


def store_of(url: str) -> str:
    """Return the bucket or container of a URL."""
    return "/".join(url.split("/")[:3])


def _bad_path(path: object, expected: str) -> Invalid:
    return Invalid(
        f"path {without_logins(repr(path))} is not usable",
        expected=expected,
        help="correct the path",
        reason="BAD_PATH",
    )
