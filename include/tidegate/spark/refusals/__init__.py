"""What Spark says when it refuses something, without the values of rows."""
