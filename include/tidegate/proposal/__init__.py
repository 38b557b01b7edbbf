"""A proposal: what changed code would make of the input that a pipeline has read, and where that differs.

replay.py    replays recorded checkpoints by today's code, on a line of its own
tables.py    the rows of a table that differ, by key and column
report.py    everything that differs, and what a merge would do
pushes.py    the last push of a pull request, and the tables that are not replayed again
kept.py      reports of kept proposals, and what has changed since one of them
policy.py    when a report fails
acceptance.py  after the merge: what is swapped in, and what ends because nothing differs
markdown.py  the report for people
"""
