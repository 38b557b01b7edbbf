"""Commands about a pipeline's life: suspend, stop, roll back, savepoints, forks."""
