"""Writes files from templates: all of them or none, and never over an existing one."""

from __future__ import annotations

import contextlib
import importlib.util
import keyword
import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tidegate import __version__
from tidegate.errors import Invalid, Rejected, Unavailable

__all__ = ["check_module_name", "check_pipeline_name", "rendered", "write_new"]

_TEMPLATES = Path(__file__).with_name("templates")
_MODULE = re.compile(r"[a-z][a-z0-9_]{0,62}")
_PATHS_OF_LIBRARIES = ("site-packages", "dist-packages")
_ALWAYS_TAKEN = frozenset({"airflow", "dags", "include", "jobs", "plugins", "pyspark", "tests", "tidegate"})


def check_module_name(name: str) -> str:
    """Return the name if a pipeline, a suite and a Python module may have it, otherwise raise Invalid."""
    if not _MODULE.fullmatch(name) or keyword.iskeyword(name):
        like_it = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789") or "orders"
        raise Invalid(
            f"{name!r} cannot be the name of a Python module and of a pipeline",
            expected="lower-case letters, digits and '_', beginning with a letter, and not a keyword of Python",
            help=f"choose another name, such as {like_it}",
            reason="BAD_NAME",
        )
    return name


def check_pipeline_name(name: str) -> str:
    """Return the name if a DAG file may have it, too. Airflow puts dags/ on Python's path, where dags/json.py would be
    imported instead of `json`."""
    check_module_name(name)
    if name in _ALWAYS_TAKEN or name in sys.stdlib_module_names or _is_library(name):
        raise Invalid(
            f"dags/{name}.py would be imported instead of Python's module {name!r}",
            expected="a name that no module has, because Airflow puts dags/ on Python's path",
            help=f"choose another name, such as my_{name}",
            reason="BAD_NAME",
        )
    return name


def _is_library(name: str) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return True  # a module without a spec
    return spec is not None and any(place in (spec.origin or "") for place in _PATHS_OF_LIBRARIES)


def rendered(template: str, name: str, project: str = "", data: str = "data") -> str:
    """Return a template's text, with the names filled in. data: the folder of the tables and records."""
    words = name.split("_")
    values = {
        "name": name,
        "Name": name.replace("_", " ").capitalize(),
        "Class": "".join(word.capitalize() for word in words),
        "project": project,
        "data": data,
        "version": __version__,
    }
    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text)


def write_new(folder: Path, texts: Mapping[str, str], *, kept: Iterable[str] = ()) -> list[str]:
    """Write files below a folder, and return their names. If one already exists, raise Rejected and write nothing.

    kept: files that are not written if they exist.
    """
    existing = [name for name in texts if os.path.lexists(folder / name)]
    conflicts = sorted(set(existing) - set(kept))
    if conflicts:
        raise Rejected(
            f"{', '.join(conflicts)} already {'exists' if len(conflicts) == 1 else 'exist'} in {folder}",
            expected="free names: no file is ever overwritten",
            help="choose another name, or move the existing files away",
            reason="THERE",
        )
    written: list[str] = []
    created: list[Path] = []
    try:
        for name, text in texts.items():
            if name in existing:
                continue
            path = folder / name
            for missing in reversed([each for each in path.parents if not each.exists()]):
                missing.mkdir(exist_ok=True)
                created.append(missing)
            with path.open("x", encoding="utf-8") as file:
                written.append(name)
                file.write(text)
    except OSError as error:
        for name in written:
            with contextlib.suppress(OSError):
                (folder / name).unlink()
        for each in reversed(created):
            with contextlib.suppress(OSError):  # another process has put something into it
                each.rmdir()
        raise Unavailable(
            f"{error.filename or folder} cannot be written: {error.strerror or error}",
            expected="a folder that this user may write to",
            help=f"choose another folder, or change its owner: sudo chown -R $(id -un) '{folder}'",
            reason="NO_ACCESS",
        ) from error
    return written
