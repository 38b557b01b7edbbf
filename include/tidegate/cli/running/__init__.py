"""Commands that run a pipeline, or look whether it can run."""
