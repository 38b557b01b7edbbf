"""One job of one checkpoint, from its plan to its ack."""
