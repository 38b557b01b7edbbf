"""How JVMs of tests are started: they live for minutes, so by the compiler that is quick, not the thorough one."""

__all__ = ["QUICK", "QUICK_TOML"]

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
QUICK_TOML = "[spark.conf]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in QUICK.items())
