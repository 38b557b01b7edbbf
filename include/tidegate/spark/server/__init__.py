"""A Spark Connect server that keeps running between checkpoints."""
