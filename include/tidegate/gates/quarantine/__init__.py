"""Quarantined rows, and how they come back."""
