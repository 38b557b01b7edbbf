"""What stands in front of sinks that go by keys: rows that are taken back, and rows that were removed."""
