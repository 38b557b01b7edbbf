"""The public test kit: a store that misbehaves, toy sources and sinks, and faults for real processes."""
