"""Finds the Delta jars, and fetches them if they are wanted and missing. Spark gets them by path: it resolves nothing
itself, and no task of a pipeline fetches anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tidegate.errors import Corrupt, Invalid, Unavailable
from tidegate.spark import fetching
from tidegate.versions import spark
from tidegate.versions.python import tomllib

__all__ = ["JARS_FOLDER_VARIABLE", "Jar", "fetch_jars", "jar_list", "jar_paths", "jars_folder", "s3_jar_list"]

JARS_FOLDER_VARIABLE = "TIDEGATE_JARS"
_LIST = Path(__file__).with_name("jars.toml")
_S3_LIST = Path(__file__).with_name("jars-s3.toml")
_CHECKOUT = Path(__file__).resolve().parents[3]
_S3_SPARK = "4.2"
"""The jars for s3:// belong to one version of Hadoop, and so to one of Spark."""


@dataclass(frozen=True)
class Jar:
    """One line of jars.toml."""

    group: str
    name: str
    version: str
    size: int
    sha256: str
    spark: str = ""
    """The version of Spark that it is for; empty: any."""
    optional: bool = False
    """True: some connector needs it, and Spark starts without it."""

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def jar_list() -> list[Jar]:
    """Return the jars that the installed Spark runs with, whether or not they are installed."""
    version = spark.minor()
    return [jar for jar in _listed(_LIST) if jar.spark in ("", version)]


def s3_jar_list() -> list[Jar]:
    """Return the jars that Spark needs for s3:// URLs, whether or not they are installed."""
    return _listed(_S3_LIST)


def jar_paths() -> list[Path]:
    """Return the jars, in the list's order. Checks that each exists and has its size; who fetched it checked the hash.
    An optional one may be missing, and so may all for object stores."""
    folder = jars_folder()
    for_stores = _s3_folder(folder)
    return _paths(jar_list(), folder) + (
        _paths(s3_jar_list(), for_stores) if for_stores.is_dir() and spark.minor() == _S3_SPARK else []
    )


def fetch_jars(*, s3: bool = False, say: Callable[[str], None]) -> list[Path]:
    """Fetch what is missing, and what is damaged. Returns what was fetched: nothing if all was there."""
    if s3 and spark.minor() != _S3_SPARK:
        raise Invalid(
            f"The jars for s3:// are for Spark {_S3_SPARK}, and Spark {spark.minor()} is installed.",
            expected=f"pyspark {_S3_SPARK}, or hadoop-aws of your Spark's Hadoop in spark.jars",
            help=f"pip install 'pyspark[connect]~={_S3_SPARK}.0'",
            reason="JARS_MISSING",
        )
    folder = jars_folder(create=True)
    wanted = [(folder, jar_list()), *([(_s3_folder(folder), s3_jar_list())] if s3 else [])]
    try:
        return [
            path
            for place, jars in wanted
            for path in fetching.fetch(map(asdict, jars), place, say=say, again=f"then `{_command(s3)}` again")
        ]
    except fetching.FetchFailed as error:
        raise Unavailable(error.what, expected=error.expected, help=error.help, reason="JARS_MISSING") from error


def _listed(file: Path) -> list[Jar]:
    return [Jar(**entry) for entry in tomllib.loads(file.read_text(encoding="utf-8"))["jar"]]


def _paths(jars: list[Jar], folder: Path) -> list[Path]:
    paths = []
    command = _command(folder.name.endswith("-s3"))
    for jar in jars:
        path = folder / jar.file_name
        if not path.is_file():
            if jar.optional:
                continue
            raise Invalid(
                f"The jar {jar.file_name} is not in {folder}.",
                help=f"Run `{command}`, or let {JARS_FOLDER_VARIABLE} name the folder that holds the jars.",
                reason="JARS_MISSING",
            )
        if (size := path.stat().st_size) != jar.size:
            raise Corrupt(
                f"The jar {path} has {size} bytes.",
                expected=f"{jar.size} bytes",
                help=f"Run `{command}`, which fetches it again.",
                reason="JARS_CORRUPT",
            )
        paths.append(path)
    return paths


def jars_folder(*, create: bool = False) -> Path:
    """Return $TIDEGATE_JARS, or .cache/jars of the checkout that this module is in, or the user's cache folder."""
    if configured := os.environ.get(JARS_FOLDER_VARIABLE):
        folder = Path(configured)
        if not folder.is_absolute() or (not folder.is_dir() and not create):
            raise Invalid(
                f"{JARS_FOLDER_VARIABLE} is {configured!r}, which is not a folder.",
                expected="the absolute path of a folder with the Delta jars",
                help=f"Correct {JARS_FOLDER_VARIABLE}, or unset it for {_usual_folder()}.",
            )
        return folder
    return _usual_folder()


def _usual_folder() -> Path:
    if _in_checkout():
        return _CHECKOUT / ".cache" / "jars"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return base / "tidegate" / "jars"


def _in_checkout() -> bool:
    return (_CHECKOUT / "tools" / "setup.py").is_file()


def _command(s3: bool) -> str:
    """The command that fetches them."""
    if _in_checkout() and not os.environ.get(JARS_FOLDER_VARIABLE):
        return "make setup S3=1" if s3 else "make setup"
    return "tidegate spark jars --s3" if s3 else "tidegate spark jars"


def _s3_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-s3")
