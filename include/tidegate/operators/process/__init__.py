"""A user's own function with state and timers, and the worker that runs it."""
