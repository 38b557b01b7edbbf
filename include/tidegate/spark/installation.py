"""Finds pyspark and Java on this machine, without starting them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
from pathlib import Path

from tidegate.errors import Invalid
from tidegate.versions.ranges import JAVA, RANGES_BY_PACKAGE, installed_version

__all__ = ["file_identity", "find_java", "spark_home", "spark_identity"]

_WANTED_JAVA = f"Java {JAVA} or newer"
_GET_JAVA = "Install it (Debian: apt-get install default-jre-headless), or set JAVA_HOME to it."


def spark_home() -> Path:
    """Return pyspark's folder, without importing it. Raise Invalid if tidegate does not support its version."""
    spec = importlib.util.find_spec("pyspark")
    supported, version = RANGES_BY_PACKAGE["pyspark"], installed_version("pyspark")
    if spec is None or spec.origin is None or (version is not None and version not in supported):
        raise Invalid(
            f"pyspark {version} is installed." if spec is not None and version else "pyspark is not installed.",
            expected=f"pyspark {supported.text}",
            help=supported.command,
            reason="PYSPARK_MISSING",
        )
    return Path(spec.origin).parent


def spark_identity() -> list[str]:
    """Return values that change when another pyspark is installed."""
    return [importlib.metadata.version("pyspark"), str(spark_home())]


def find_java() -> Path:
    """Return the Java that spark-submit will use. Raise Invalid if it is missing, or too old for Spark."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
    else:
        java = Path(shutil.which("java") or "/java")
    if not java.is_file():
        raise Invalid(
            f"There is no Java ({'JAVA_HOME is ' + home if home else 'no `java` on the PATH'}).",
            expected=_WANTED_JAVA,
            help=_GET_JAVA,
            reason="JAVA_MISSING",
        )
    java = java.resolve()
    version = _java_version(java)
    if version is not None and version < JAVA:
        raise Invalid(f"{java} is Java {version}.", expected=_WANTED_JAVA, help=_GET_JAVA, reason="JAVA_MISSING")
    return java


def _java_version(java: Path) -> int | None:
    """Return a Java's version from its `release` file, without starting it, or None if that is missing."""
    for folder in java.parents[1:3]:  # Java 8 may be in jre/bin
        with contextlib.suppress(OSError):
            match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', (folder / "release").read_text("utf-8"), re.MULTILINE)
            return int(match[1]) if match else None
    return None


def file_identity(path: Path) -> list[object]:
    """Return values that change when a file is replaced, without reading it."""
    try:
        status = path.stat()
    except OSError as error:
        raise Invalid(
            f"Spark cannot read {path}, which it needs: {error.strerror}.",
            help="Correct spark.jars, or run `tidegate spark jars`.",
            reason="JARS_MISSING",
        ) from None
    return [str(path), status.st_size, status.st_mtime_ns]
