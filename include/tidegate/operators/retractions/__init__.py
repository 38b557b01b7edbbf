"""Operators that the graph puts in front of keyed sinks, for retractions and deletions, and keys of changelogs."""
