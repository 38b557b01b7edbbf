"""The columns that a quarantine adds to its rows."""

from __future__ import annotations

from typing import Final

ID, CHECKPOINT, STREAM = "_tidegate_id", "_tidegate_checkpoint", "_tidegate_stream"
RULES = "_tidegate_rules"
SETTLED, SETTLED_IN, SETTLED_BY = "_tidegate_settled", "_tidegate_settled_in", "_tidegate_settled_by"
"""The outcome for a row, "released" or "discarded", with the checkpoint and the user. Null until then."""
STAYS = "_tidegate_stays"
"""Why a row could not be released as requested, or null. Older tables lack the column."""
SETTLED_REQUEST = "_tidegate_settled_request"
"""The number of the request that settled the row. Older tables lack the column."""
CORRECTED = "_tidegate_corrected"
"""The values with which a corrected row was released, as a JSON object by column. The row itself stays as it was. Older
tables lack the column."""
WHY = "_tidegate_why"
"""For a row that a person has diverted: what the target said, and who it was. Null for others. Older tables lack the
column."""
OWN_PREFIX = "_tidegate_"
OWN_COLUMNS = (ID, CHECKPOINT, STREAM, RULES, SETTLED, SETTLED_IN, SETTLED_BY, STAYS, SETTLED_REQUEST, CORRECTED, WHY)
BOOKKEEPING = frozenset(OWN_COLUMNS) - {STREAM, RULES}
"""Columns that say what has become of a row. All others are its content."""

WHOLE_MOMENTS: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
"""Formats with microseconds, for rows as JSON. Spark's default ones stop at milliseconds."""
