"""What a declaration amounts to: the graph, its jobs, and what identifies its parts."""
