"""Where rows come from and go: the contracts of sources and sinks, and a folder for each system with both.

Pipelines import sources from `tidegate.sources` and sinks from `tidegate.sinks`.
"""
