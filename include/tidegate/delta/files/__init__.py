"""A Delta table's files: their location, their footers, and how they get to the disk."""
