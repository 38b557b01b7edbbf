"""The rules of checkpoints, as pure functions: read them beside docs/protocol.md. No store, no clock, no Spark."""
