"""How records in files are parsed exactly, and what happens to those that do not fit the schema."""
