"""Finds the Delta jars. Spark gets them by path; nothing is resolved from a registry at run time."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import Corrupt, Invalid

__all__ = ["JARS_FOLDER_VARIABLE", "Jar", "jar_list", "jar_paths", "jars_folder", "s3_jar_list"]

JARS_FOLDER_VARIABLE = "TIDEGATE_JARS"
_LIST = Path(__file__).with_name("jars.toml")
_S3_LIST = Path(__file__).with_name("jars-s3.toml")
_CHECKOUT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Jar:
    """One line of jars.toml."""

    group: str
    name: str
    version: str
    size: int
    sha256: str
    optional: bool = False
    """True: some connector needs it, and Spark starts without it."""

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def jar_list() -> list[Jar]:
    """Return the jars that this version of tidegate runs with, whether or not they are installed."""
    return [Jar(**entry) for entry in tomllib.loads(_LIST.read_text(encoding="utf-8"))["jar"]]


def s3_jar_list() -> list[Jar]:
    """Return the jars that Spark needs for s3:// URLs, whether or not they are installed."""
    return [Jar(**entry) for entry in tomllib.loads(_S3_LIST.read_text(encoding="utf-8"))["jar"]]


def jar_paths() -> list[Path]:
    """Return the jars, in the list's order. Checks that each exists and has its size; set-up checked the hash. An
    optional one may be missing, and so may all for object stores."""
    folder = jars_folder()
    for_stores = folder.with_name(f"{folder.name}-s3")
    return _paths(jar_list(), folder) + (_paths(s3_jar_list(), for_stores) if for_stores.is_dir() else [])


def _paths(jars: list[Jar], folder: Path) -> list[Path]:
    paths = []
    for jar in jars:
        path = folder / jar.file_name
        if not path.is_file():
            if jar.optional:
                continue
            raise Invalid(
                f"The jar {jar.file_name} is not in {folder}.",
                help=f"Run `make setup`, or let {JARS_FOLDER_VARIABLE} name the folder that holds the jars.",
                reason="JARS_MISSING",
            )
        if (size := path.stat().st_size) != jar.size:
            raise Corrupt(
                f"The jar {path} has {size} bytes.",
                expected=f"{jar.size} bytes",
                help="Delete it and run `make setup`.",
                reason="JARS_CORRUPT",
            )
        paths.append(path)
    return paths


def jars_folder() -> Path:
    """Return $TIDEGATE_JARS, or .cache/jars of the checkout that this module is in."""
    if configured := os.environ.get(JARS_FOLDER_VARIABLE):
        folder = Path(configured)
        if not folder.is_absolute() or not folder.is_dir():
            raise Invalid(
                f"{JARS_FOLDER_VARIABLE} is {configured!r}, which is not a folder.",
                expected="the absolute path of a folder with the Delta jars",
                help=f"Correct {JARS_FOLDER_VARIABLE}, or unset it to use .cache/jars of the checkout.",
            )
        return folder
    return _CHECKOUT / ".cache" / "jars"
