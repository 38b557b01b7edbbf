"""The distinct values of exact counts."""
