"""How JVMs of tests are started: they live for minutes, where the thorough compiler took two fifths of the time."""

from tidegate.spark.class_archive import archive_options

__all__ = ["INTERPRETED", "OPTIONS", "QUICK", "environment", "settings_of_fixture", "toml"]

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
QUICK = {"spark.driver.extraJavaOptions": OPTIONS}
INTERPRETED = QUICK | {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Spark evaluates expressions one by one, in place of compiling a Java class for each of some 250 stages a checkpoint,
and plans once, in place of after each shuffle: half of the time where each has a few rows. For tests of operators,
sinks, crashes and what Airflow does. Commands, servers of one's own, the documents, chaos and benches compile and
adapt, as users' pipelines do."""


def toml(conf: dict[str, str]) -> str:
    """The table [spark.conf] of tidegate.toml."""
    return "[spark.conf]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in conf.items())


def settings_of_fixture() -> str:
    """A tidegate.toml with which commands in this process use the Spark of the fixture `spark`, with a ledger."""
    settings = {"root": "ledger", "spark.mode": "local", "spark.master": "local[2]", "spark.memory": "2g"}
    return "".join(f'{key} = "{value}"\n' for key, value in settings.items()) + toml(INTERPRETED)


def environment() -> dict[str, str]:
    """What makes any JVM that is started with it a quick one: a cluster's master, its workers, `spark-submit`."""
    return {"JAVA_TOOL_OPTIONS": OPTIONS + archive_options(())}
