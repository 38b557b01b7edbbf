"""SQL over the streams of a pipeline: compiled to the operators and stages that one would declare by hand."""
