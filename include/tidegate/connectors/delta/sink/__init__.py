"""Sinks that are Delta tables."""
