"""Delta tables without a JVM: stage files, commit by compare-and-swap, restore, read a version."""

from tidegate.delta.files.access import Location, locate, redact_path
from tidegate.delta.files.footers import (
    StagedFile,
    Written,
    WrittenFile,
    missing_files,
    refuse_difference,
    rows_below,
    rows_written,
    sync_and_list,
    verify_written_files,
)
from tidegate.delta.files.partitions import partition_values, with_plain_partition_text
from tidegate.delta.files.sync import Syncing, overlapping_seconds
from tidegate.delta.journal import Journal
from tidegate.delta.log.active_files import LiveFile, data_files, live_files, paths_outside
from tidegate.delta.log.cleanup import forget_log
from tidegate.delta.log.commits import (
    CommitStamp,
    Committed,
    add_columns,
    append,
    change_columns,
    create,
    find_commit,
    find_publication,
    overwrite,
    replace,
    sync_commit,
    verify,
)
from tidegate.delta.log.features import (
    refuse_unsafe,
    required_columns,
    spark_reasons,
    spark_reasons_to_rewrite,
)
from tidegate.delta.log.files import Commit, DataFile, read_commit
from tidegate.delta.log.owner import owner_of, refuse_owner
from tidegate.delta.log.restore import Foreign, foreign_commits, restore, vacuum, version_of
from tidegate.delta.log.schema import differences, from_spark, schema_problems
from tidegate.delta.log.snapshot import Snapshot, observed_tables, open_table, reopen, trust_hint
from tidegate.delta.log.table_log import TableFiles, TableLayout, TableLog
from tidegate.delta.queries import query, read_table, sql_name

__all__ = [
    "Commit",
    "CommitStamp",
    "Committed",
    "DataFile",
    "Foreign",
    "Journal",
    "LiveFile",
    "Location",
    "Snapshot",
    "StagedFile",
    "Syncing",
    "TableFiles",
    "TableLayout",
    "TableLog",
    "Written",
    "WrittenFile",
    "add_columns",
    "append",
    "change_columns",
    "create",
    "data_files",
    "differences",
    "find_commit",
    "find_publication",
    "foreign_commits",
    "forget_log",
    "from_spark",
    "live_files",
    "locate",
    "missing_files",
    "observed_tables",
    "open_table",
    "overlapping_seconds",
    "overwrite",
    "owner_of",
    "partition_values",
    "paths_outside",
    "query",
    "read_commit",
    "read_table",
    "redact_path",
    "refuse_difference",
    "refuse_owner",
    "refuse_unsafe",
    "reopen",
    "replace",
    "required_columns",
    "restore",
    "rows_below",
    "rows_written",
    "schema_problems",
    "spark_reasons",
    "spark_reasons_to_rewrite",
    "sql_name",
    "sync_and_list",
    "sync_commit",
    "trust_hint",
    "vacuum",
    "verify",
    "verify_written_files",
    "version_of",
    "with_plain_partition_text",
]
