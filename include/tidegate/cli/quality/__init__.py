"""Commands about quarantines and suites."""
