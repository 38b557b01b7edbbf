"""Spark: sessions, the embedded server, spark-submit, and operations on frames."""
