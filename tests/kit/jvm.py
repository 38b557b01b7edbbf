"""How JVMs of tests are started: they live for minutes, where the thorough compiler took two fifths of the time."""

__all__ = ["INTERPRETED", "QUICK", "QUICK_TOML"]

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"}
QUICK_TOML = "[spark.conf]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in QUICK.items())
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Spark evaluates expressions one by one, in place of compiling a Java class for each of some 250 stages a checkpoint,
which took a third of the time where each has a few rows. For the sessions that tests share. Whatever starts a Spark of
its own compiles, as users' pipelines do: DAGs, commands, crashes, chaos, benches."""
