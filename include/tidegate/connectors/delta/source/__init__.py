"""Source: the commits of a Delta table."""
