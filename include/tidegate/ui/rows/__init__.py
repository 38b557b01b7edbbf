"""Rows of tables and quarantines, for a look. Values: who may see them is asked by the routes (`ui/access.py`)."""
