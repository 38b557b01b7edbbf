"""Folders of files: as a source, and as an export for tools that do not know Delta."""
