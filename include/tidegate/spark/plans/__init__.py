"""What Spark's analysed plan tells about a function on frames."""
