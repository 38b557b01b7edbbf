"""Sources and sinks: their contracts, and a folder for each system that tidegate reads from or writes to.

Pipelines import sources from `tidegate.sources` and sinks from `tidegate.sinks`.
"""
