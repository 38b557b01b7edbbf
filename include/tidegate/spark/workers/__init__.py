"""Spark's Python workers: the code that they need, and what they do besides their work."""
