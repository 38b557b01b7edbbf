"""The versions that tidegate supports. pyproject.toml has the same ranges, as a test checks.

`make matrix-versions` runs tidegate with the oldest and newest ones; docs/reference/versions.md has the results.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from typing import Final

__all__ = ["JAVA", "PYTHON", "RANGES", "RANGES_BY_PACKAGE", "VersionRange", "installed_version", "release_of"]


@dataclass(frozen=True)
class VersionRange:
    """A package, and the versions from `lowest` up to, and without, `below`."""

    package: str
    lowest: tuple[int, ...]
    below: tuple[int, ...]
    extra: str = ""
    """The extra of tidegate that installs it; none: tidegate cannot do without it."""

    def __contains__(self, version: str) -> bool:
        return self.lowest <= release_of(version) < self.below

    @property
    def text(self) -> str:
        return f">={_dotted(self.lowest)},<{_dotted(self.below)}"

    @property
    def command(self) -> str:
        """The command that installs a version of this range."""
        if self.extra:
            return f"pip install 'tidegate[{self.extra}]'"
        return f"pip install '{self.package}{self.text}'"


PYTHON: Final = VersionRange("Python", (3, 10), (3, 14))
JAVA: Final = 17
"""The oldest Java that Spark 4 runs on."""

RANGES: Final = (
    VersionRange("apache-airflow", (3, 0), (3, 4), "airflow"),
    VersionRange("pyspark", (4, 0), (4, 3), "spark"),
    VersionRange("delta-spark", (4, 4), (4, 4, 1), "spark"),
    VersionRange("pandas", (2, 2), (3,), "spark"),
    VersionRange("great-expectations", (1, 6), (2,), "gates"),
    VersionRange("deltalake", (1, 6), (2,)),
    VersionRange("pyarrow", (20,), (27,)),
    VersionRange("obstore", (0, 11), (0, 13)),
    VersionRange("msgspec", (0, 19), (1,)),
    VersionRange("confluent-kafka", (2, 16), (3,), "kafka"),
    VersionRange("fastavro", (1, 9), (2,), "avro"),
    VersionRange("adbc-driver-postgresql", (1, 8), (2,), "postgres"),
    VersionRange("psycopg", (3, 2), (4,), "postgres"),
    VersionRange("pyiceberg", (0, 12), (0, 13), "iceberg"),
    VersionRange("sqlglot", (30,), (31,), "sql"),
    VersionRange("apache-airflow-providers-openlineage", (2, 20), (3,), "lineage"),
)

RANGES_BY_PACKAGE: Final = {each.package: each for each in RANGES}


def release_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (4, 2, 0) for 4.2.0.dev1."""
    match = re.match(r"\d+(\.\d+)*", version)
    if match:
        return tuple(map(int, match[0].split(".")))
    return ()


def installed_version(package: str) -> str | None:
    """Return a package's version, without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
