"""A Spark Connect server that stays between checkpoints."""
