"""Runs one job of one checkpoint, and the Spark sessions for it."""
