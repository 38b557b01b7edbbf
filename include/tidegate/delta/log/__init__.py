"""A Delta table's log: read, commit, check, clean up."""
