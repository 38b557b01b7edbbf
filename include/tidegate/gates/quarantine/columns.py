"""The columns that a quarantine adds to the rows that it holds."""

from __future__ import annotations

ID, CHECKPOINT, STREAM = "_tidegate_id", "_tidegate_checkpoint", "_tidegate_stream"
RULES = "_tidegate_rules"
SETTLED, SETTLED_IN, SETTLED_BY = "_tidegate_settled", "_tidegate_settled_in", "_tidegate_settled_by"
"""What has become of a row: null while it waits, then "released" or "discarded"; in which checkpoint; and by whom."""
OWN_COLUMNS = (ID, CHECKPOINT, STREAM, RULES, SETTLED, SETTLED_IN, SETTLED_BY)
