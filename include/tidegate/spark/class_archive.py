"""Java's class archive: Spark's classes as a file that a JVM maps at its start, instead of loading each of them.

With it Spark starts in half the time. It is only an optimization: a JVM that cannot use it, because its Java or its
class path differs, loads the classes as usual. The archive is in `classes`, next to the folder of the Delta jars.
`tidegate spark prepare` creates it, which `make setup` runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from tidegate.spark.installation import file_identity, find_java, spark_home, spark_identity
from tidegate.spark.jars import jars_folder

__all__ = ["archive_key", "archive_name", "archive_options", "archives_folder", "find_archive"]

_OWN_ARCHIVE = re.compile(r"-Xshare:|-XX:(SharedArchiveFile|ArchiveClassesAtExit|SharedClassListFile)\b")
# Without these options, a JVM that cannot use the archive prints why.
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
# Java options are split at spaces, and quotes are taken out.
_PLAIN = re.compile(r"[\w./+@%:,=-]+")


def archives_folder() -> Path:
    """Return the folder of archives."""
    return jars_folder().parent / "classes"


def archive_key() -> str:
    """Return the name of the archive for this Java and this pyspark: `spark-<hash>`."""
    identities = [file_identity(find_java()), spark_identity(), file_identity(spark_home() / "jars")]
    return "spark-" + hashlib.sha256(json.dumps(identities).encode()).hexdigest()[:12]


def archive_name(key: str, size: int) -> str:
    """Return the name of an archive's file. It contains the size, because a JVM crashes with an incomplete archive."""
    return f"{key}-{size}.jsa"


def find_archive() -> Path | None:
    """Return the complete archive for this Java and this pyspark, or None."""
    key = archive_key()
    for file in sorted(archives_folder().glob(f"{key}-*.jsa")):
        with contextlib.suppress(OSError):
            if file.name == archive_name(key, file.stat().st_size):
                return file
    return None


def archive_options(user_options: Iterable[str]) -> str:
    """Return the Java options that use the archive; empty without an archive, or if the user has chosen one."""
    if any(map(_OWN_ARCHIVE.search, user_options)):
        return ""
    file = find_archive()
    if file is None or _PLAIN.fullmatch(str(file)) is None:
        return ""
    return f" -XX:SharedArchiveFile={file} {_QUIET}"
