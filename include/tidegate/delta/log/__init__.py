"""A Delta table's log: read, commit, check, clean up. Nothing else in a run reads log files or opens tables.

    files.py         the files as they are: their names, one commit's actions
    snapshot.py      a version through delta-rs: what sinks commit on
    active_files.py  its live files and their statistics, typed, through delta-rs
    table_log.py     versions and snapshots replayed from the files: what sources read
    commits.py       compare-and-swap, and which commit is whose

delta-rs alone is not enough. It hides deletion vectors among the files of a version (it lists their names apart, so
sinks can refuse them), does not open every table that Spark reads, returns partition values as types of its own
instead of the text in the log, and gives no access to the actions of one commit, which tell whose it is, whether it
changes rows, and what a change feed is read from. It takes an empty commit for one without changes and syncs nothing.
Replaying alone is not enough, either: commits, typed statistics and queries stay with delta-rs.
"""
