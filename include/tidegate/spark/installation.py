"""Where pyspark and Java are on this machine, found without starting them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path

from tidegate.errors import Invalid
from tidegate.versions.ranges import RANGES_BY_PACKAGE

__all__ = ["file_identity", "find_java", "spark_home", "spark_identity"]


def spark_home() -> Path:
    """Return where pyspark is, without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        known = RANGES_BY_PACKAGE["pyspark"]
        raise Invalid(
            "pyspark is not installed.",
            expected=f"pyspark {known.text}",
            help=known.command,
            reason="PYSPARK_MISSING",
        )
    return Path(spec.origin).parent


def spark_identity() -> list[str]:
    """Return values that change when another pyspark is installed."""
    return [importlib.metadata.version("pyspark"), str(spark_home())]


def find_java() -> Path:
    """Return the Java that spark-submit will use."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "/java")
    if not java.is_file():
        raise Invalid(
            f"There is no Java ({'JAVA_HOME is ' + home if home else 'no `java` on the PATH'}).",
            expected="Java 17 or later",
            help="Install it (Debian: apt-get install openjdk-17-jre-headless) or correct JAVA_HOME.",
            reason="JAVA_MISSING",
        )
    return java.resolve()


def file_identity(path: Path) -> list[object]:
    """Return values that change when a file is replaced by another, without reading it."""
    try:
        status = path.stat()
    except OSError as error:
        raise Invalid(
            f"Spark needs {path}, which cannot be read: {error.strerror}.",
            help="Correct spark.jars, or run `tidegate spark jars`.",
            reason="JARS_MISSING",
        ) from None
    return [str(path), status.st_size, status.st_mtime_ns]
