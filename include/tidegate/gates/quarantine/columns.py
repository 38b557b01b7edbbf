"""The columns that a quarantine adds to its rows."""

from __future__ import annotations

ID, CHECKPOINT, STREAM = "_tidegate_id", "_tidegate_checkpoint", "_tidegate_stream"
RULES = "_tidegate_rules"
SETTLED, SETTLED_IN, SETTLED_BY = "_tidegate_settled", "_tidegate_settled_in", "_tidegate_settled_by"
"""The outcome for a row, "released" or "discarded", with the checkpoint and the user. Null until then."""
STAYS = "_tidegate_stays"
"""Why a row could not be released as requested, or null. Older tables lack the column."""
OWN_PREFIX = "_tidegate_"
OWN_COLUMNS = (ID, CHECKPOINT, STREAM, RULES, SETTLED, SETTLED_IN, SETTLED_BY, STAYS)
