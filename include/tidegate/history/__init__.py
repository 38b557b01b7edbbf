"""What has become of every checkpoint: a Delta table, what is asked of it, and the numbers and health made of it."""
