"""Reads, commits to, checks and cleans up the log of a Delta table. In a run, nothing else reads log files.

    files.py         the files: their names, the actions of one commit
    snapshot.py      a version, opened through delta-rs, on which sinks commit
    active_files.py  a version's live files and their typed statistics, through delta-rs
    table_log.py     versions and snapshots, replayed from the files, for sources
    commits.py       compare-and-swap commits, and finding the commit of a checkpoint

delta-rs alone is not enough. It lists deletion vectors separately from the files of a version (so sinks can refuse
them), does not open every table that Spark can read, and converts partition values instead of returning the log's
text. It has no access to the actions of a single commit, which show who made it, whether it changes rows, and which
files its change feed is read from. It reads an empty commit file as a commit without changes, and syncs nothing.
Replaying alone is not enough either: commits, typed statistics and queries need delta-rs.
"""
