"""Publish completed checkpoints to the tables."""
