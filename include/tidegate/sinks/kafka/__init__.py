"""Sinks that are Kafka topics."""
