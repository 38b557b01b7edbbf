"""Lets a server do typical work of pipelines: `python -m tidegate.spark.server.warm_up FOLDER PORT` warms up a spare.

The first checkpoint on a cold server takes several times as long as the next one, because classes are loaded, code is
compiled, and Python workers start and import modules.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.spark.server.client import loopback, open_session
from tidegate.spark.server.folder import ServerFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["do_everything_once", "main"]

_TIMES = 3
_PATIENCE = 3
_ANSWER_TIMEOUT = 120.0


def do_everything_once(spark: SparkSession, folder: Path) -> None:
    """Run readers, writers, aggregates, joins, windows and Python workers once. The folder must be new."""
    rows = spark.range(100).selectExpr("id", "id % 7 AS key", "current_timestamp() AS at", "'x' AS text")
    for kind in ("parquet", "json", "csv"):
        rows.write.format(kind).save(str(folder / kind))
        spark.read.schema("id long, key long, at timestamp, text string").format(kind).load(str(folder / kind)).count()
    written = spark.read.parquet(str(folder / "parquet"))
    sums = written.groupBy("key").agg({"id": "sum", "at": "max"})
    written.join(sums, "key").selectExpr("row_number() OVER (PARTITION BY key ORDER BY id) AS n").collect()
    written.mapInArrow(lambda batches: batches, "id long, key long, at timestamp, text string").toArrow()
    rows.write.format("delta").save(str(folder / "delta"))
    spark.read.format("delta").load(str(folder / "delta")).toArrow()


def main(arguments: list[str]) -> int:
    """Warm up a folder's server that listens on this port, with temporary files in the working folder."""
    folder, port = ServerFolder(Path(arguments[0])), int(arguments[1])
    builder = loopback(port, folder.token_file.read_text(encoding="ascii"))
    with (
        tempfile.TemporaryDirectory(prefix="warm-up-", dir=Path.cwd()) as aside,
        open_session(builder, {}, answer_timeout=_ANSWER_TIMEOUT, patience=_PATIENCE) as spark,
    ):
        for number in range(_TIMES):
            do_everything_once(spark, Path(aside, str(number)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
