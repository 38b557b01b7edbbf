"""Samples of rows of tables, streams and quarantines. The routes check who may see them (`ui/access.py`)."""
