"""Source: the files of a folder."""
