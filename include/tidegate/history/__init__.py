"""The history of all checkpoints: a Delta table, its queries, and the metrics and health made of it."""
