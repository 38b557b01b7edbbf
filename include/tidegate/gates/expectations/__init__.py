"""Great Expectations' suites: read, checked, run."""
