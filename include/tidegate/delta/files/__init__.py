"""A Delta table's files: where they are, what their footers say, how they get to the disk."""
