"""Spark's error messages, without the values of rows."""
