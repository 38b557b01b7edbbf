"""The rules of checkpoints, as pure functions. Read them with docs/protocol.md. No store, no clock, no Spark."""
