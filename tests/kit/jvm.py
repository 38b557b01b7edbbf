"""How JVMs of tests are started: they live for minutes, where the thorough compiler took two fifths of the time."""

__all__ = ["QUICK", "QUICK_TOML"]

QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"}
QUICK_TOML = "[spark.conf]\n" + "".join(f'"{key}" = "{value}"\n' for key, value in QUICK.items())
