"""Run one job of one checkpoint, and the Spark sessions that it runs in."""
