"""Folders of plain files, for tools that know no Delta."""
