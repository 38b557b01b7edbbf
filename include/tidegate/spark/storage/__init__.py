"""Where Spark reads and writes: one disk that all processes share, or an object store."""
