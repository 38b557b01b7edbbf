"""Folders of files as a source sees them: find by pattern, open for fingerprints. Local disks or object stores.

Two rules keep a producer from making tidegate read what it should not: links are never followed out of
the folder, and nothing but regular files is ever opened.
"""

from __future__ import annotations

import fnmatch
import os
import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tidegate.delta.files.access import Location, file_system, unavailable
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import Place, is_url

__all__ = ["Folder", "Found", "Pattern", "is_ignored", "open_folder"]

TEMPORARY = (".tmp", ".crc", ".inprogress", "._copying_")
"""What writers call a file that is not there yet, in lower case."""

_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Found:
    """A file that matches: its name relative to the folder, with '/' on every system."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True)
class Pattern:
    """A path with globs, cut where the first glob stands: a fixed folder, and what must match below it."""

    folder: str
    parts: tuple[str, ...]

    @staticmethod
    def of(text: str) -> Pattern:
        """`landing/*/x-*.json` → folder `landing`, parts `*` and `x-*.json`."""
        scheme, sep, path = text.rpartition("://")
        root = "/" if path.startswith("/") else ""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        fixed = next((at for at, part in enumerate(parts) if _GLOB.search(part)), len(parts) - 1)
        globs = [part for at, part in enumerate(parts[fixed:]) if part != "**" or parts[fixed:][at - 1 : at] != ["**"]]
        if globs and globs[-1] == "**":
            globs.append("*")
        return Pattern(f"{scheme}{sep}{root}{'/'.join(parts[:fixed])}" or ".", tuple(globs))

    @property
    def regex(self) -> re.Pattern[str]:
        """The parts as one regular expression over a relative name."""
        rows = ["(?:[^/]+/)*" if part == "**" else _translate(part) + "/" for part in self.parts]
        return re.compile("".join(rows).removesuffix("/") + r"\Z", re.DOTALL)

    @property
    def deep(self) -> bool:
        """Whether files may lie at any depth."""
        return "**" in self.parts


def is_ignored(name: str) -> bool:
    """Whether one part of a path is hidden or temporary: Spark's rule, and what common writers do."""
    return name.startswith(("_", ".")) or name.lower().endswith(TEMPORARY)


def open_folder(place: Place, path: str) -> Folder:
    """The folder that the user calls `path`."""
    url = place.url(path)
    return _ObjectFolder(Location(url, place.options)) if is_url(url) else _LocalFolder(os.path.realpath(url))


class Folder(ABC):
    """A folder to find files in. `url` is where it is, as Spark takes it."""

    url: str
    is_local: bool

    @abstractmethod
    def exists(self) -> bool:
        """Whether the folder is there. An object store has no empty folders: always True."""

    @abstractmethod
    def names(self, pattern: Pattern) -> list[str]:
        """The names of all matching files, in their order. No file is looked at for that: there may be very many, of
        which nearly all were read long ago."""

    @abstractmethod
    def look(self, name: str) -> Found | None:
        """One of the files that were found. None: it is gone."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file's bytes; FileNotFoundError if it is gone."""

    def full(self, name: str) -> str:
        """The file as Spark takes it: not escaped, not encoded."""
        return f"{self.url.rstrip('/')}/{name}"


class _LocalFolder(Folder):
    is_local = True

    def __init__(self, url: str) -> None:
        self.url = url

    def exists(self) -> bool:
        return os.path.isdir(self.url)

    def names(self, pattern: Pattern) -> list[str]:
        outside: list[str] = []
        found: list[str] = []
        try:
            self._walk("", pattern.parts, found, outside)
        except OSError as error:
            raise unavailable(str(error.filename or self.url), error) from error
        if outside:
            raise _outside(self.url, sorted(set(outside)))
        names = sorted(set(found))
        _refuse_undecodable(self.url, names)
        return names

    def look(self, name: str) -> Found | None:
        path = self.full(name)
        try:
            stat = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None  # deleted since it was listed
        except OSError as error:
            raise unavailable(path, error) from error
        return Found(name, stat.st_size, stat.st_mtime)

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        path = self.full(name)
        real = os.path.realpath(path)
        if not self._contains(real):
            raise _outside(self.url, [name])
        if not os.path.isfile(real):
            raise FileNotFoundError(path)
        return open(real, "rb")

    def _contains(self, real: str) -> bool:
        return Path(real).is_relative_to(self.url)

    def _walk(self, below: str, parts: tuple[str, ...], found: list[str], outside: list[str]) -> None:
        """Match `parts` below one folder, part by part: folders that cannot match are not listed.

        It costs a microsecond or two per file, and a plan meets every file that ever landed: mind each line of it.
        """
        head, rest = parts[0], parts[1:]
        if head == "**":
            self._walk(below, rest, found, outside)
        deeper, prefix = head == "**" or bool(rest), f"{below}/" if below else ""
        matches = re.compile(_translate("*" if head == "**" else head) + r"\Z", re.DOTALL).match
        with os.scandir(os.path.join(self.url, below)) as entries:
            for entry in entries:
                if not matches(entry.name) or is_ignored(entry.name):
                    continue
                name = prefix + entry.name
                if entry.is_symlink() and not self._contains(os.path.realpath(entry.path)):
                    outside.append(name)
                elif deeper:
                    if entry.is_dir(follow_symlinks=False):
                        self._walk(name, parts if head == "**" else rest, found, outside)
                elif entry.is_file():  # told by the listing; only a link is looked at
                    found.append(name)


class _ObjectFolder(Folder):
    is_local = False

    def __init__(self, location: Location) -> None:
        self.url = location.url
        self._location = location
        self._system = file_system(location)
        self._listed: dict[str, Found] = {}

    def exists(self) -> bool:
        return True

    def names(self, pattern: Pattern) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        regex = pattern.regex
        try:
            infos = self._system.get_file_info(FileSelector("", allow_not_found=True, recursive=True))
        except OSError as error:
            raise unavailable(self.url, error) from error
        self._listed = {
            name: Found(name, info.size, info.mtime.timestamp() if info.mtime else 0.0)
            for info in infos
            if info.type == FileType.File
            and regex.match(name := info.path.lstrip("/"))
            and not any(is_ignored(part) for part in info.path.split("/"))
        }
        return sorted(self._listed)

    def look(self, name: str) -> Found | None:
        return self._listed.get(name)  # an object store tells all of it with the name

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        return cast("AbstractContextManager[BinaryIO]", self._system.open_input_file(name))


def _translate(part: str) -> str:
    """One part of a glob as a regular expression that never matches across '/'."""
    inner = fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z")
    return inner.replace(".*", "[^/]*") if part in ("*", "**") else f"(?:{inner})"


def _refuse_undecodable(folder: str, names: list[str]) -> None:
    """A name that is no UTF-8 cannot be written to a record."""
    try:
        "/".join(names).encode()
    except UnicodeEncodeError:
        pass
    else:
        return
    bad = sorted(repr(name) for name in names if re.search("[\ud800-\udfff]", name))
    raise Invalid(
        f"{len(bad)} file name(s) in {folder} are not valid UTF-8: {', '.join(bad[:5])}",
        expected="names in UTF-8",
        help="rename them, or move them out of the folder",
        reason="BAD_FILE_NAME",
    )


def _outside(folder: str, names: list[str]) -> Invalid:
    return Invalid(
        f"{len(names)} link(s) in {folder} lead out of the folder: {', '.join(repr(name) for name in names[:5])}",
        expected="files, or links to files inside the folder",
        help="put copies of the files there, or remove the links; tidegate follows no link out of a source's folder",
        reason="LINK_OUTSIDE",
    )


def missing_folder(source: str, url: str, started: bool) -> Invalid | Unavailable:
    """The folder of a source is not there: a wrong path at first, a lost mount later."""
    if started:
        return Unavailable(
            f"source {source!r}: folder {url} is gone; files were read from it before",
            help="mount or restore it; it is tried again",
            reason="NO_FOLDER",
        )
    return Invalid(
        f"source {source!r}: there is no folder {url}",
        expected="a folder, which may be empty",
        help=f"create it (mkdir -p '{url}'), or correct the pattern",
        reason="NO_FOLDER",
    )
