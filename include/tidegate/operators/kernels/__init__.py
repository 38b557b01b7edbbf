"""Operators as workers compute them, on Arrow tables: the rows are those of the DataFrame algebra."""
