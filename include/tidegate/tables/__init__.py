"""The Delta log through delta-rs: stage, commit by compare-and-swap, restore, read a version. No JVM."""

from tidegate.tables.files import Location, locate
from tidegate.tables.footers import StagedFile, missing_files, stage
from tidegate.tables.log import Committed, Snapshot, Stamp, append, commit, create, find_commit, open_table
from tidegate.tables.owner import owner_of, refuse_owner
from tidegate.tables.schema import from_spark, schema_problems

__all__ = [
    "Committed",
    "Location",
    "Snapshot",
    "StagedFile",
    "Stamp",
    "append",
    "commit",
    "create",
    "find_commit",
    "from_spark",
    "locate",
    "missing_files",
    "open_table",
    "owner_of",
    "refuse_owner",
    "schema_problems",
    "stage",
]
