"""Exactly these files, and no others: whatever their names, and whatever the session says.

No folder like `a=b` adds columns, and no file that is missing or damaged is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["escaped", "exact_reader", "parquet_files", "unreadable"]

_SPECIAL: Final = re.compile(r"[\\\[\]{}*?]")
_OPTIONS: Final = {"recursiveFileLookup": "true", "ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
_JAVA: Final = "_tidegate_files_in_java"
_BETWEEN: Final = "\x01"
"""What stands between paths that go to Java as one text."""
_MOST_SCHEMAS: Final = 500


def exact_reader(spark: SparkSession, paths: Sequence[str]) -> DataFrameReader:
    """Return a reader for exactly these files. Load `escaped(paths)` with it."""
    options = dict(_OPTIONS)
    if _has_colon(paths):
        # Hadoop's checksumming file system cannot open a name with a colon; the plain one can.
        options |= {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
    return spark.read.options(**options)


def _has_colon(paths: Sequence[str]) -> bool:
    return any(":" in path.rpartition("/")[2] for path in paths) and paths[0].startswith("/")


def escaped(paths: Sequence[str]) -> list[str]:
    """Escape paths so that Spark, which treats each as a glob, matches only the path itself."""
    return [_SPECIAL.sub(r"\\\g<0>", path) for path in paths]


def unreadable(path: str) -> bool:
    """Return whether Spark cannot read this local path: Hadoop's globs cannot contain a colon."""
    return ":" in path and _SPECIAL.search(path) is not None


def parquet_files(spark: SparkSession, paths: Sequence[str], schema: StructType | str) -> DataFrame:
    """Return the rows of exactly these Parquet files. schema: may be in SQL's form."""
    frame = _listed_once(spark, paths, schema)
    if frame is not None:
        return frame
    return exact_reader(spark, paths).schema(schema).format("parquet").load(escaped(paths))


def _listed_once(spark: SparkSession, paths: Sequence[str], schema: StructType | str) -> DataFrame | None:
    """Return the frame that Spark's reader would make, in a quarter of its time. None: that reader has to do it.

    For each frame the reader starts eighty threads to look whether the files are there, before it lists them. Listing
    shows that as well: if any is not found, the reader is asked, and says so.
    """
    java = _in_java(spark)
    if java is None or _has_colon(paths) or not (java.local_by_default or "://" in paths[0]):
        return None
    if any(_BETWEEN in path for path in paths):
        return None
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    try:
        session, columns = spark._jsparkSession, java.schema(schema)
        full = _BETWEEN.join(path if "://" in path else f"file:{path}" for path in paths)
        list_of = java.texts.stringToPath(java.texts.getStrings(full, _BETWEEN))
        roots = java.arrays.unsafeWrapArray(list_of)
        index = java.index(session, roots, java.options, java.some(columns), java.no_cache, java.none, java.none)
        if index.allFiles().size() != len(paths):
            return None
        relation = java.relation(index, java.no_columns, columns, java.none, java.parquet, java.options, session)
        return ClassicFrame(session.baseRelationToDataFrame(relation), spark)
    except Exception:  # whatever it is: the reader says it as people know it
        return None


@dataclass(frozen=True)
class _Java:
    """What a frame of files is made of, looked up once."""

    jvm: Any
    texts: Any
    arrays: Any
    some: Any
    none: Any
    index: Any
    no_cache: Any
    relation: Any
    parquet: Any
    options: Any
    no_columns: Any
    local_by_default: bool
    """Whether a path without a scheme is one of a local disk."""
    _schemas: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, spark: Any) -> _Java:
        jvm = spark._jvm
        sources, hadoop = jvm.org.apache.spark.sql.execution.datasources, spark.sparkContext._jsc.hadoopConfiguration()
        return cls(
            jvm,
            texts=jvm.org.apache.hadoop.util.StringUtils,
            arrays=jvm.scala.collection.immutable.ArraySeq,
            some=jvm.scala.Some,
            none=getattr(getattr(jvm.scala, "None$"), "MODULE$"),
            index=sources.InMemoryFileIndex,
            no_cache=getattr(getattr(sources, "NoopCache$"), "MODULE$"),
            relation=sources.HadoopFsRelation,
            parquet=sources.parquet.ParquetFileFormat(),
            options=jvm.PythonUtils.toScalaMap(_OPTIONS),
            no_columns=jvm.org.apache.spark.sql.types.StructType(),
            local_by_default=str(hadoop.get("fs.defaultFS")).startswith("file:"),
        )

    def schema(self, schema: StructType | str) -> Any:
        """Return the columns, all of which may be null, as a reader has them."""
        text = schema if isinstance(schema, str) else schema.json()
        if text not in self._schemas:
            types = self.jvm.org.apache.spark.sql.types
            made = types.StructType.fromDDL(text) if isinstance(schema, str) else types.DataType.fromJson(text)
            if len(self._schemas) >= _MOST_SCHEMAS:
                self._schemas.clear()
            self._schemas[text] = made.asNullable()
        return self._schemas[text]


def _in_java(spark: SparkSession) -> _Java | None:
    """Return it for a session with a Spark in this process. None: there is none, or a version without these classes."""
    held: Any = vars(spark)
    if _JAVA not in held:
        try:
            held[_JAVA] = _Java.of(spark) if hasattr(spark, "_jsparkSession") else None
        except Exception:
            held[_JAVA] = None
    known: _Java | None = held[_JAVA]
    return known
