"""The columns that a quarantine adds to its rows."""

from __future__ import annotations

ID, CHECKPOINT, STREAM = "_tidegate_id", "_tidegate_checkpoint", "_tidegate_stream"
RULES = "_tidegate_rules"
SETTLED, SETTLED_IN, SETTLED_BY = "_tidegate_settled", "_tidegate_settled_in", "_tidegate_settled_by"
"""The outcome for a row: null while it waits, then "released" or "discarded"; the checkpoint; and the person."""
STAYS = "_tidegate_stays"
"""Why a row was not released although somebody asked for that: null unless it was so. Older tables lack the column."""
OWN_PREFIX = "_tidegate_"
OWN_COLUMNS = (ID, CHECKPOINT, STREAM, RULES, SETTLED, SETTLED_IN, SETTLED_BY, STAYS)
