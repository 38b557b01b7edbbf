"""Finds the Delta jars, and fetches missing ones on request. Spark gets their paths, so that it does not resolve jars
itself, and a pipeline's tasks fetch nothing."""

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
"""The jars for s3:// fit one version of Hadoop, and therefore one of Spark."""


@dataclass(frozen=True)
class Jar:
    """One line of jars.toml."""

    group: str
    name: str
    version: str
    size: int
    sha256: str
    spark: str = ""
    """The version of Spark that it is for, or empty for any."""
    optional: bool = False
    """Whether only some connector needs it, so that Spark starts without it."""

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
    """Return the paths of the jars, in the list's order. Each must exist and have its size; its hash was checked when
    it was fetched. Optional jars and those for object stores may be missing."""
    folder = jars_folder()
    for_stores = _s3_folder(folder)
    return _paths(jar_list(), folder) + (
        _paths(s3_jar_list(), for_stores) if for_stores.is_dir() and spark.minor() == _S3_SPARK else []
    )


def fetch_jars(*, s3: bool = False, say: Callable[[str], None]) -> list[Path]:
    """Fetch missing and damaged jars. Return the fetched ones."""
    if s3 and spark.minor() != _S3_SPARK:
        raise Invalid(
            f"The jars for s3:// are for Spark {_S3_SPARK}, and Spark {spark.minor()} is installed.",
            expected=f"pyspark {_S3_SPARK}, or hadoop-aws of your Spark's Hadoop in spark.jars",
            help=f"pip install 'pyspark[connect]~={_S3_SPARK}.0'",
            reason="JARS_MISSING",
        )
    folder = jars_folder(create=True)
    lists = [(folder, jar_list())]
    if s3:
        lists.append((_s3_folder(folder), s3_jar_list()))
    fetched: list[Path] = []
    try:
        for target, jars in lists:
            fetched += fetching.fetch(map(asdict, jars), target, say=say, again=f"then `{_command(s3)}` again")
        return fetched
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
                help=f"Run `{command}`, or set {JARS_FOLDER_VARIABLE} to the folder with the jars.",
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
    """Return the command that fetches the jars."""
    if _in_checkout() and not os.environ.get(JARS_FOLDER_VARIABLE):
        return "make setup S3=1" if s3 else "make setup"
    if s3:
        return "tidegate spark jars --s3"
    return "tidegate spark jars"


def _s3_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-s3")
