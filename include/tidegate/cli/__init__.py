"""The `tidegate` command: look at checkpoints and make them, by hand or from scripts."""
