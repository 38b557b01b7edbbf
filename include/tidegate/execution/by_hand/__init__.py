"""Checkpoints that a person makes by hand: changes of a state, and diverts of rows that a target refuses."""
