"""Commands that run a pipeline, or check whether it can run."""
