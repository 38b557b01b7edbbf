"""The code for Python workers on other machines, in one zip file: tidegate and the user's modules.

Spark copies the file to each machine and prepends it to the import path, so that only tidegate's dependencies must be
installed there. The modules are compiled, because Python cannot cache compiled modules in a zip file, and each worker
would compile them again.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import struct
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["code_archive", "ship_code"]

_OURS: Final = Path(__file__).resolve().parents[2]
_BEGINNING: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time in a zip file. Used for all modules, so that the same modules make the same file."""
_NOT_FOR_WORKERS: Final = ("cli", "dag", "testing", "ui", "verify")


def ship_code(spark: SparkSession, python_path: Iterable[Path], folder: Path) -> None:
    """Ship tidegate, and the modules in these folders, to the workers of a session.

    folder: for the file. If Spark's driver is this process, workers read it from there for as long as the driver lives.
    """
    session: Any = spark
    archive = code_archive(folder, python_path)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        session.addArtifacts(str(archive), pyfile=True)
        return
    before = list(sys.path)
    session.sparkContext.addPyFile(str(archive))
    sys.path[:] = before


def code_archive(folder: Path, python_path: Iterable[Path]) -> Path:
    """Create the zip file in `folder`, and return its path. Of two modules with the same name the first one counts, as
    on the import path."""
    path = folder / "tidegate_code.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        added: set[str] = set()
        for root, module in _modules(python_path):
            name = module.relative_to(root).with_suffix("").as_posix()
            if name not in added:
                folders = {f"{parent.as_posix()}/" for parent in Path(name).parents[:-1]}
                for parent in sorted(folders - added):  # a folder without __init__.py needs an entry to be a package
                    archive.writestr(zipfile.ZipInfo(parent, _BEGINNING), "")
                added |= {name, *folders}
                _add(archive, module, name, folder)
    return path


def _modules(python_path: Iterable[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield all modules, each with its folder on the import path: first tidegate's, then the user's."""
    for below, folders, names in os.walk(_OURS):
        folders[:] = sorted(set(folders) - {"__pycache__"} - (set(_NOT_FOR_WORKERS) if Path(below) == _OURS else set()))
        for name in sorted(names):
            if name.endswith(".py"):
                yield (_OURS.parent, Path(below, name))
    for root in dict.fromkeys(path.resolve() for path in python_path):
        for below, folders, names in os.walk(root):
            modules = [Path(below, name) for name in sorted(names) if name.endswith(".py")]
            if Path(below) != root and not modules:
                folders.clear()  # data, logs and environments are not imported
            folders[:] = sorted(name for name in folders if name.isidentifier() and name != "__pycache__")
            for module in modules:
                if _OURS not in module.parents:
                    yield (root, module)


def _add(archive: zipfile.ZipFile, module: Path, name: str, folder: Path) -> None:
    try:
        content, suffix = _compiled(module, folder / "compiled.pyc"), ".pyc"
    except py_compile.PyCompileError:  # importing it raises the error
        content, suffix = module.read_bytes(), ".py"
    archive.writestr(zipfile.ZipInfo(name + suffix, _BEGINNING), content, zipfile.ZIP_DEFLATED)


def _compiled(module: Path, scratch: Path) -> bytes:
    """Return the compiled module, from Python's cache if that is current."""
    source = module.stat()
    stamp = struct.pack("<4sLLL", importlib.util.MAGIC_NUMBER, 0, int(source.st_mtime) & 0xFFFFFFFF, source.st_size)
    try:
        kept = Path(importlib.util.cache_from_source(str(module))).read_bytes()
        if kept[:16] == stamp:
            return kept
    except OSError:
        pass
    how = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(module), cfile=str(scratch), doraise=True, invalidation_mode=how)
    return scratch.read_bytes()
