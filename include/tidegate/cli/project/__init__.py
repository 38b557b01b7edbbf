"""Commands that write files of a project: a new one, or a pipeline, suite, source or sink in it."""
