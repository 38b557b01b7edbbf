"""Spark: sessions, the embedded server, submitting, and what we do with frames."""
