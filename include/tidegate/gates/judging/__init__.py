"""Judging rows: in Spark, or in files that were staged."""
