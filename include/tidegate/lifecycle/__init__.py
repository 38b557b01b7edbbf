"""A pipeline's life: suspend, roll back, savepoints, forks, retention, recovery, the end."""
