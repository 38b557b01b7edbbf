"""What is completed comes into the tables."""
