"""Schemas of sources that follow their input: what did not fit, and how they have changed."""
