"""The graph that a declaration makes, its jobs, and what identifies its parts."""
