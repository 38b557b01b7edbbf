"""Folders on local disks or object stores: finds files by pattern, and opens them for fingerprints.

Two rules keep a producer from making tidegate read other files: links are never followed out of the folder, and only
regular files are opened.
"""

from __future__ import annotations

import fnmatch
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from tidegate.delta.files.access import Location, file_system, unavailable
from tidegate.errors import Invalid, Unavailable
from tidegate.records.place import Place, is_url

__all__ = ["FileStat", "Folder", "Pattern", "is_ignored", "open_folder"]

TEMPORARY = (".tmp", ".crc", ".inprogress", "._copying_")
"""Suffixes that writers give to unfinished files, in lower case."""

_GLOB = re.compile(r"[*?\[]")


def _in_any_case(text: str) -> str:
    """Return a regular expression for a text in upper or lower case."""
    parts = [f"[{letter}{letter.upper()}]" if letter.isalpha() else re.escape(letter) for letter in text]
    return "".join(parts)


_NOT_TEMPORARY = "".join(f"(?<!{_in_any_case(suffix)})" for suffix in TEMPORARY)
"""A regular expression that only matches after a name without such a suffix."""


@dataclass(frozen=True)
class FileStat:
    """A file that matches a pattern. Its name is relative to the folder, with '/' on every system."""

    name: str
    size: int
    modified: float


@dataclass(frozen=True)
class Pattern:
    """A path with wildcards: the folder before the first one, and the parts that must match below the folder."""

    folder: str
    parts: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Pattern:
        """Split `landing/*/x-*.json` into folder `landing` and parts `*` and `x-*.json`."""
        scheme, sep, path = text.rpartition("://")
        root = "/" if path.startswith("/") else ""
        parts = [part for part in path.split("/") if part not in ("", ".")]
        first_glob = len(parts) - 1
        for index, part in enumerate(parts):
            if _GLOB.search(part):
                first_glob = index
                break
        globs: list[str] = []
        for part in parts[first_glob:]:
            if part != "**" or globs[-1:] != ["**"]:  # a second ** in a row has no effect
                globs.append(part)
        if globs and globs[-1] == "**":
            globs.append("*")
        folder = f"{scheme}{sep}{root}{'/'.join(parts[:first_glob])}"
        return Pattern(folder or ".", tuple(globs))

    @property
    def regex(self) -> re.Pattern[str]:
        """The regular expression for relative names that match."""
        pattern = ""
        for part in self.parts:
            pattern += "(?:[^/]+/)*" if part == "**" else f"{_translate(part)}/"
        return re.compile(pattern.removesuffix("/") + r"\Z", re.DOTALL)

    @property
    def deep(self) -> bool:
        """Whether matching files may be at any depth."""
        return "**" in self.parts


def is_ignored(name: str) -> bool:
    """Return whether one part of a path is hidden or temporary, by Spark's rule and the habits of common writers."""
    return name.startswith(("_", ".")) or name.lower().endswith(TEMPORARY)


def open_folder(place: Place, path: str) -> Folder:
    """Open the folder that a user calls `path`."""
    url = place.url(path)
    if is_url(url):
        return _ObjectFolder(Location(url, place.options))
    return _LocalFolder(os.path.realpath(url))


class Folder(ABC):
    """A folder with files. `url` is its location, as Spark expects it."""

    url: str
    is_local: bool

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the folder exists. Always True for an object store, which has no empty folders."""

    @abstractmethod
    def names(self, pattern: Pattern) -> list[str]:
        """Return the names of all matching files, each once, in any order.

        This does not stat single files: there may be very many, and nearly all of them were read long ago.
        """

    @abstractmethod
    def stat(self, name: str) -> FileStat | None:
        """Return size and time of a file that was listed, or None if it no longer exists."""

    @abstractmethod
    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Open a file for reading. Raise FileNotFoundError if it no longer exists."""

    def full(self, name: str) -> str:
        """Return the file's full path or URL, neither escaped nor encoded."""
        return f"{self.url.rstrip('/')}/{name}"


class _LocalFolder(Folder):
    is_local = True

    def __init__(self, url: str) -> None:
        self.url = url

    def exists(self) -> bool:
        return os.path.isdir(self.url)

    def names(self, pattern: Pattern) -> list[str]:
        outside: list[str] = []
        matches: list[str] = []
        try:
            self._walk("", pattern.parts, matches, outside)
        except OSError as error:
            raise unavailable(str(error.filename or self.url), error) from error
        if outside:
            raise _link_outside(self.url, sorted(set(outside)))
        if pattern.deep:
            matches = list(dict.fromkeys(matches))  # ** may match the same file in several ways
        _refuse_undecodable_names(self.url, matches)
        return matches

    def stat(self, name: str) -> FileStat | None:
        path = self.full(name)
        try:
            stat = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None  # deleted since it was listed
        except OSError as error:
            raise unavailable(path, error) from error
        return FileStat(name, stat.st_size, stat.st_mtime)

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        path = self.full(name)
        real = os.path.realpath(path)
        if not self._contains(real):
            raise _link_outside(self.url, [name])
        if not os.path.isfile(real):
            raise FileNotFoundError(path)
        return open(real, "rb")

    def _contains(self, real: str) -> bool:
        return Path(real).is_relative_to(self.url)

    def _walk(self, subfolder: str, parts: tuple[str, ...], matches: list[str], outside: list[str]) -> None:
        """Match `parts` below a folder, part by part, without listing folders that cannot match."""
        head, remaining = parts[0], parts[1:]
        if head == "**":
            self._walk(subfolder, remaining, matches, outside)
        prefix = f"{subfolder}/" if subfolder else ""
        is_match = re.compile(_translate_name("*" if head == "**" else head), re.DOTALL).match
        if head != "**" and not remaining:
            self._match_files(subfolder, prefix, is_match, matches, outside)
            return
        with os.scandir(os.path.join(self.url, subfolder)) as entries:
            for entry in entries:
                if not is_match(entry.name):
                    continue
                name = prefix + entry.name
                if self._leads_out(entry):
                    outside.append(name)
                elif entry.is_dir(follow_symlinks=False):
                    self._walk(name, parts if head == "**" else remaining, matches, outside)

    def _match_files(
        self, subfolder: str, prefix: str, is_match: Callable[[str], object], matches: list[str], outside: list[str]
    ) -> None:
        """Match the files in one folder.

        A plan lists every file that ever landed, so this loop is optimized: a million files take about a second, half
        of it in the operating system.
        """
        names: list[str] = []
        links: list[os.DirEntry[str]] = []
        with os.scandir(os.path.join(self.url, subfolder)) as entries:
            add = names.append
            for entry in entries:
                if entry.is_file(follow_symlinks=False):  # the listing tells, without a system call
                    add(entry.name)
                elif entry.is_symlink() and is_match(entry.name):
                    links.append(entry)
        matched = filter(is_match, names)
        matches += [prefix + name for name in matched] if prefix else matched
        for link in links:
            if self._leads_out(link):
                outside.append(prefix + link.name)
            elif link.is_file():
                matches.append(prefix + link.name)

    def _leads_out(self, entry: os.DirEntry[str]) -> bool:
        return entry.is_symlink() and not self._contains(os.path.realpath(entry.path))


class _ObjectFolder(Folder):
    is_local = False

    def __init__(self, location: Location) -> None:
        self.url = location.url
        self._location = location
        self._system = file_system(location)
        self._listed: dict[str, FileStat] = {}

    def exists(self) -> bool:
        return True

    def names(self, pattern: Pattern) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        regex = pattern.regex
        try:
            infos = self._system.get_file_info(FileSelector("", allow_not_found=True, recursive=True))
        except OSError as error:
            raise unavailable(self.url, error) from error
        self._listed = {}
        for info in infos:
            name = info.path.lstrip("/")
            if info.type != FileType.File or not regex.match(name):
                continue
            if any(is_ignored(part) for part in info.path.split("/")):
                continue
            modified = info.mtime.timestamp() if info.mtime else 0.0
            self._listed[name] = FileStat(name, info.size, modified)
        return list(self._listed)

    def stat(self, name: str) -> FileStat | None:
        return self._listed.get(name)  # listing an object store returns size and time, too

    def open(self, name: str) -> AbstractContextManager[BinaryIO]:
        return cast("AbstractContextManager[BinaryIO]", self._system.open_input_file(name))


def _translate(part: str) -> str:
    """Translate one part of a glob to a regular expression that never matches across '/'."""
    inner = fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z")
    if part in ("*", "**"):
        return inner.replace(".*", "[^/]*")
    return f"(?:{inner})"


def _translate_name(part: str) -> str:
    """Translate one part of a glob to a regular expression that does not match names that `is_ignored` excludes."""
    return rf"(?![_.]){_translate(part)}{_NOT_TEMPORARY}\Z"


def _refuse_undecodable_names(folder: str, names: list[str]) -> None:
    """Raise Invalid if a name is not valid UTF-8, because it could not be written to a record."""
    try:
        "/".join(names).encode()
        return
    except UnicodeEncodeError:
        pass
    bad = sorted(repr(name) for name in names if re.search("[\ud800-\udfff]", name))
    raise Invalid(
        f"{len(bad)} file name(s) in {folder} are not valid UTF-8: {', '.join(bad[:5])}",
        expected="names in UTF-8",
        help="rename them, or move them out of the folder",
        reason="BAD_FILE_NAME",
    )


def _link_outside(folder: str, names: list[str]) -> Invalid:
    return Invalid(
        f"{len(names)} link(s) in {folder} lead out of the folder: {', '.join(map(repr, names[:5]))}",
        expected="files, or links to files inside the folder",
        help="replace the links by copies of the files, or remove them; links out of the folder are not followed",
        reason="LINK_OUTSIDE",
    )


def missing_folder(source: str, url: str, started: bool) -> Invalid | Unavailable:
    """Return the error for a missing folder: a wrong path before the first plan, a lost mount later."""
    if started:
        return Unavailable(
            f"source {source!r}: folder {url} no longer exists; files were read from it before",
            help="mount or restore it; the next run tries again",
            reason="NO_FOLDER",
        )
    return Invalid(
        f"source {source!r}: folder {url} does not exist",
        expected="a folder, which may be empty",
        help=f"create it (mkdir -p '{url}'), or correct the pattern",
        reason="NO_FOLDER",
    )
