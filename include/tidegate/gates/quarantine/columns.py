"""The columns that a quarantine adds to its rows."""

from __future__ import annotations

ID, CHECKPOINT, STREAM = "_tidegate_id", "_tidegate_checkpoint", "_tidegate_stream"
RULES = "_tidegate_rules"
SETTLED, SETTLED_IN, SETTLED_BY = "_tidegate_settled", "_tidegate_settled_in", "_tidegate_settled_by"
"""The outcome for a row: null while it waits, then "released" or "discarded"; the checkpoint; and the person."""
OWN_COLUMNS = (ID, CHECKPOINT, STREAM, RULES, SETTLED, SETTLED_IN, SETTLED_BY)
