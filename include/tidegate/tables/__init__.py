"""The Delta log through delta-rs: stage, commit by compare-and-swap, restore, read a version. No JVM."""

from tidegate.tables.features import (
    refuse_unsafe,
    required_columns,
    spark_reasons,
    spark_reasons_to_rewrite,
)
from tidegate.tables.files import Location, locate
from tidegate.tables.footers import StagedFile, missing_files, refuse_difference, rows_below, stage
from tidegate.tables.journal import Journal
from tidegate.tables.live import LiveFile, live_files, query, read_table
from tidegate.tables.log import (
    Committed,
    Snapshot,
    Stamp,
    add_columns,
    append,
    create,
    find_commit,
    find_publication,
    open_table,
    overwrite,
    replace,
    sync_commit,
    verify,
)
from tidegate.tables.old_logs import forget_log
from tidegate.tables.owner import owner_of, refuse_owner
from tidegate.tables.partitions import nameable, partition_values
from tidegate.tables.rawlog import Commit, read_commit
from tidegate.tables.restore import Foreign, foreign_commits, restore, vacuum, version_of
from tidegate.tables.schema import differences, from_spark, schema_problems
from tidegate.tables.syncing import Syncing, seconds_beside

__all__ = [
    "Commit",
    "Committed",
    "Foreign",
    "Journal",
    "LiveFile",
    "Location",
    "Snapshot",
    "StagedFile",
    "Stamp",
    "Syncing",
    "add_columns",
    "append",
    "create",
    "differences",
    "find_commit",
    "find_publication",
    "foreign_commits",
    "forget_log",
    "from_spark",
    "live_files",
    "locate",
    "missing_files",
    "nameable",
    "open_table",
    "overwrite",
    "owner_of",
    "partition_values",
    "query",
    "read_commit",
    "read_table",
    "refuse_difference",
    "refuse_owner",
    "refuse_unsafe",
    "replace",
    "required_columns",
    "restore",
    "rows_below",
    "schema_problems",
    "seconds_beside",
    "spark_reasons",
    "spark_reasons_to_rewrite",
    "stage",
    "sync_commit",
    "vacuum",
    "verify",
    "version_of",
]
