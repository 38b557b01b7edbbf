"""Spark's own keys: those that a user may set, and those that may differ between the sessions of one Spark."""

from __future__ import annotations

import re

from tidegate.errors import Invalid

__all__ = ["FIXED", "OF_THE_CLUSTER", "STATIC_SQL_KEYS", "check_spark_key", "is_session_key"]

_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_COMMITTER = "mapreduce.fileoutputcommitter"

# Settings that the user cannot change, and why. The first value is tidegate's, the others are as safe. Keys that begin
# with mapreduce are Hadoop's: the user may also have written them with the prefix `spark.hadoop.`.
FIXED: dict[str, tuple[tuple[str, ...], str]] = {
    "spark.sql.session.timeZone": (("UTC",), "days and hours must not depend on who runs the job"),
    "spark.sql.parquet.outputTimestampType": (("TIMESTAMP_MICROS",), "the Delta log needs their statistics"),
    "spark.sql.parquet.writeLegacyFormat": (("false",), "delta-rs must read what Spark writes"),
    f"{_COMMITTER}.algorithm.version": (("1",), "version 2 leaves files of failed tasks in the folder"),
    f"{_COMMITTER}.marksuccessfuljobs": (("false",), "a staged folder holds data files only"),
    "spark.sql.sources.commitProtocolClass": (
        (
            "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",
            "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
        ),
        "a staged folder must hold exactly the files of successful tasks",
    ),
    "spark.sql.parquet.output.committer.class": (
        (
            "org.apache.parquet.hadoop.ParquetOutputCommitter",
            "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
        ),
        "a staged folder must hold exactly the files of successful tasks",
    ),
    "spark.sql.catalog.spark_catalog": ((_DELTA_CATALOG,), "tables are Delta tables"),
    "spark.ui.enabled": (("false",), "the web UI authenticates no user"),
    "spark.driver.host": (("127.0.0.1",), "the embedded Spark is not reachable from outside"),
    "spark.driver.bindAddress": (("127.0.0.1",), "the embedded Spark is not reachable from outside"),
    "spark.connect.grpc.binding.address": (("127.0.0.1",), "the embedded Spark is not reachable from outside"),
    "spark.connect.grpc.binding.port": (("0",), "the server takes a free port and reports it"),
}

# Settings that are set in another way. The text completes "Use …".
_ELSEWHERE = {
    "spark.master": "the setting `master`",
    "spark.driver.memory": "the setting `memory`",
    "spark.remote": "the setting `remote`",
    "spark.api.mode": "the setting `mode`",
    "spark.connect.authenticate.token": "the token that is generated for each server; nothing has to be set",
    "spark.connect.grpc.interceptor.classes": "a server of your own and the setting `remote`",
    "spark.submit.deployMode": "mode submit as it is: the driver runs next to the task, so that it ends with the task",
    "spark.pyspark.python": "the Python that runs tidegate: workers must be the same",
    "spark.pyspark.driver.python": "the Python that runs tidegate: workers must be the same",
    "spark.jars.packages": "`spark.jars` with files: nothing is downloaded at run time",
    "spark.jars.repositories": "`spark.jars` with files: nothing is downloaded at run time",
    "spark.jars.ivySettings": "`spark.jars` with files: nothing is downloaded at run time",
}

# Keys that look like session keys, but that Spark reads only at its start (StaticSQLConf of 4.2; a test compares this
# list with Spark's own).
STATIC_SQL_KEYS = frozenset(
    "spark.sql." + key
    for key in """
    broadcastExchange.maxThreadThreshold
    cache.serializer catalogImplementation codegen.cache.maxEntries codegen.comments debug
    defaultUrlStreamHandlerFactory.enabled event.truncate.length extensions extensions.test.loadFromCp
    filesourceTableRelationCacheSize globalTempDatabase hive.thriftServer.singleSession
    legacy.sessionInitWithConfigDefaults metadataCacheTTLSeconds queryExecutionListeners
    resultQueryStage.maxThreadThreshold shuffleExchange.maxThreadThreshold sources.disabledJdbcConnProviderList
    sources.schemaStringLengthThreshold streaming.streamingQueryListeners streaming.ui.enabled
    streaming.ui.enabledCustomMetricList streaming.ui.retainedProgressUpdates streaming.ui.retainedQueries
    subquery.maxThreadThreshold ui.retainedExecutions warehouse.dir
    """.split()  # noqa: SIM905
)
_SESSION_PREFIXES = ("spark.sql.", "spark.databricks.")
_SERVER_PREFIXES = ("spark.sql.catalog.", "spark.sql.hive.", "spark.sql.connect.ui.")
_SIZE, _COUNT = re.compile(r"[0-9]+ *([kmgtp]?b|[kmgtp])?", re.IGNORECASE), re.compile(r"[1-9][0-9]*")
_FORMS = {
    "spark.executor.memory": (_SIZE, "a size such as 8g"),
    "spark.executor.memoryOverhead": (_SIZE, "a size such as 1g"),
    "spark.executor.pyspark.memory": (_SIZE, "a size such as 1g"),
    "spark.driver.memoryOverhead": (_SIZE, "a size such as 1g"),
    "spark.memory.offHeap.size": (_SIZE, "a size such as 4g"),
    "spark.executor.instances": (_COUNT, "a whole number, at least 1"),
    "spark.executor.cores": (_COUNT, "a whole number, at least 1"),
    "spark.driver.cores": (_COUNT, "a whole number, at least 1"),
    "spark.cores.max": (_COUNT, "a whole number, at least 1"),
}
"""The most used settings of executors. A typo is reported here, before a job starts its own Spark."""
_KEY = re.compile(r"spark\.[A-Za-z0-9_][A-Za-z0-9_.\-]*")
# If executors are on other machines, only the user knows how they reach the driver, and where their Python is.
OF_THE_CLUSTER = frozenset({"spark.driver.host", "spark.driver.bindAddress", "spark.pyspark.python"})


def check_spark_key(key: str, value: str) -> None:
    """Raise Invalid for keys that are not Spark's, and for values that would break a promise."""
    if not isinstance(value, str) or not _KEY.fullmatch(key):
        raise Invalid(
            f"The Spark configuration has {key!r} with a value of type {type(value).__name__}.",
            expected="a key that begins with `spark.`, and text as its value",
            help="Write numbers and true/false in quotes; Hadoop's keys begin with `spark.hadoop.`.",
        )
    if key in _ELSEWHERE:
        raise Invalid(f"{key} cannot be set in the Spark configuration.", help=f"Use {_ELSEWHERE[key]}.")
    form, expected = _FORMS.get(key, (None, ""))
    if form is not None and not form.fullmatch(value.strip()):
        raise Invalid(f"{key} is {value!r}.", expected=expected, help="Correct the value.")
    values, why = FIXED.get(key.removeprefix("spark.hadoop.")) or ((value,), "")
    if value not in values:
        raise Invalid(
            f"{key} cannot be set to {value!r}: {why}.",
            expected=" or ".join(values),
            help="Omit it; a stage that needs another value converts in its own code.",
        )


def is_session_key(key: str) -> bool:
    """Return whether sessions of one server may have different values of this key. All other keys apply to a whole
    server or application."""
    return key.startswith(_SESSION_PREFIXES) and not key.startswith(_SERVER_PREFIXES) and key not in STATIC_SQL_KEYS
