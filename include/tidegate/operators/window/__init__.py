"""Windows of event time: fixed and sliding ones, sessions, and when they close."""
