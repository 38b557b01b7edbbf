"""State merged by workers in Arrow, where Spark and we see the same disk."""
