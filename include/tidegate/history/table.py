"""The history: a Delta table with a row for each checkpoint that was ever decided. It outlives the records.

    <root>/<pipeline>/history/     one row per settled entry, in the order of ids (delta/journal.py)

Any process writes rows, after a publish and before retention removes the records that they are made from: all settled
entries that are missing, in one commit whose transaction is the highest id in it. So no row is duplicated. No decision
and no publish waits for it, and none fails with it: errors here are logged, and `tidegate doctor` reports them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import msgspec

from tidegate import seams
from tidegate.checkpoint.references import states_of
from tidegate.connectors.channel import Sent
from tidegate.delta import CommitStamp, Journal, Location, owner_of
from tidegate.errors import TidegateError
from tidegate.history.details import StateSize
from tidegate.history.row import HistoryRow, row_of
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry
from tidegate.records import typed
from tidegate.records.moments import moment_of
from tidegate.records.records import Amount, Json, Payload, sum_of
from tidegate.state.compaction import debt
from tidegate.state.record import StateTable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "HISTORY", "journal_of", "live_row", "remember", "rows_table"]

log = logging.getLogger(__name__)

HISTORY: Final = "history"
"""The table's folder, next to the checkpoints."""
BATCH = 500
"""At most this many rows in one commit: a ledger that is older than its history is read in parts."""
CLEAN_EVERY = 50
"""After this many entries, files that crashes have left are removed, and the old part of the table's log."""
RACES = 5
"""After losing this many races, the rest is left to the winners."""

DETAILS: Final = "details"
"""The column with the details, as JSON."""
_TIMES = ("planned", "decided", "published", "watermark")
_TYPES = {"bool": "boolean", "int": "long", "float": "double", "str": "string", "CheckpointDetails": "string"}


def _column(name: str, hint: Any) -> Json:
    python = str(getattr(hint, "__name__", hint)).replace(" | None", "")
    kind = "timestamp" if name in _TIMES else _TYPES[python]
    return {"name": name, "type": kind, "nullable": name != "id", "metadata": {}}


SCHEMA: Final[Json] = {
    "type": "struct",
    "fields": [_column(name, hint) for name, hint in get_type_hints(HistoryRow).items()],
}
COLUMNS: Final = tuple(field["name"] for field in SCHEMA["fields"] if field["name"] != DETAILS)
"""The columns that a list shows and sorts by."""


def journal_of(ledger: Ledger, options: Mapping[str, str]) -> Journal:
    """Return the history's table. Its transactions carry the pipeline's uid, so that a pipeline that starts over writes
    its own rows."""
    identity = ledger.identity_or_none()
    uid = identity.uid if identity is not None else ""
    return Journal(Location(f"{ledger.home}/{HISTORY}", options), SCHEMA, "id", f"tidegate-history/{uid}")


def remember(ledger: Ledger, options: Mapping[str, str]) -> int:
    """Write the settled entries that are missing, and return their number. Never raises."""
    try:
        return _remember(ledger, journal_of(ledger, options))
    except Exception as error:
        log.warning(
            "The history of pipeline %s could not be written: %s. No checkpoint is harmed, but checkpoints that "
            "retention removes in the meantime will be missing for good. `tidegate doctor %s` examines it",
            ledger.pipeline,
            error,
            ledger.pipeline,
        )
        return 0


def _remember(ledger: Ledger, journal: Journal) -> int:
    written = races = 0
    while races < RACES:
        snapshot = journal.opened()
        last = journal.last(snapshot)
        settled = ledger.settled()
        if settled > last:
            ids = ledger.ids(after=last, before=settled + 1)[:BATCH]
        else:
            ids = []
        rows_or_none = [_row(ledger, id) for id in ids]
        rows = [row for row in rows_or_none if row is not None]
        if not rows:
            return written
        if journal.add(snapshot, rows_table(rows), _stamp(ledger, journal, rows[-1].id)) is None:
            races += 1
            continue
        written += len(rows)
        if any(id % CLEAN_EVERY == 0 for id in ids):
            latest = journal.opened()
            if latest is not None:
                journal.clean(latest)
        if len(ids) < BATCH:
            return written
    return written


def _row(ledger: Ledger, id: int) -> HistoryRow | None:
    """Return the row of an entry. None if it is retired, or unreadable, which `tidegate doctor` reports."""
    try:
        entry = ledger.entry(id)
        if entry is not None:
            return live_row(ledger, entry)
        return None
    except TidegateError as error:
        log.warning("Checkpoint %s of pipeline %s is missing in its history: %s", id, ledger.pipeline, error.what)
        return None


def live_row(ledger: Ledger, entry: Entry, *, sizes: bool = True) -> HistoryRow:
    """Return the row of an entry, from its records.

    sizes: include the sizes of states and of rows in flight, for which further records must be read.
    """
    published = ledger.published(entry.id)
    if not sizes:
        return row_of(entry, published, {}, {})
    return row_of(entry, published, _state_sizes(ledger, entry), _in_flight(ledger, entry))


def _state_sizes(ledger: Ledger, entry: Entry) -> dict[str, StateSize]:
    """Return the size of each state, from the record that its ack names."""
    sizes = {}
    for name, payload in states_of(entry).items():
        state = typed.convert(ledger.unpack(payload), StateTable)
        sizes[name] = StateSize(
            rows=sum(part.file.rows for part in state.files),
            bytes=sum(part.file.size for part in state.files),
            delta=sum(part.file.size for part in state.files if part.checkpoint == entry.id),
            files=len(state.files),
            unmerged=debt(state.files),
        )
    return sizes


def _in_flight(ledger: Ledger, entry: Entry) -> dict[str, Amount]:
    """Return, by overtaken job, how much it has yet to read."""
    if entry.manifest is None or entry.rollback is not None:
        return {}
    amounts = {}
    for job, unread in entry.manifest.in_flight.items():
        sent = []
        for part in unread:
            for payload in part.channels.values():
                sent.append(_sent(ledger, payload))
        amounts[job] = sum_of(sent)
    return amounts


def _sent(ledger: Ledger, payload: Payload) -> Amount:
    """Return the amount in a channel's record. It is unknown if the record is lost."""
    try:
        return typed.convert(ledger.unpack(payload), Sent).amount
    except TidegateError:
        return Amount()


def _stamp(ledger: Ledger, journal: Journal, last: int) -> CommitStamp:
    owner = owner_of(ledger.pipeline, HISTORY, journal.app_id)
    return CommitStamp(
        app_id=journal.app_id,
        id=last,
        pipeline=ledger.pipeline,
        generation=0,
        attempt=seams.new_id(),
        owner=owner,
        faults=("H1.history.before", "H1.history.after"),
    )


def rows_table(rows: Iterable[HistoryRow], names: Sequence[str] = ()) -> pa.Table:
    """Return rows in the table's schema, with these columns; by default with all."""
    import pyarrow as pa

    from tidegate.delta.arrow_types import arrow_schema

    listed = list(rows)
    names = names or [field["name"] for field in SCHEMA["fields"]]
    columns: dict[str, list[Any]] = {}
    for name in names:
        values: list[Any] = [getattr(row, name) for row in listed]
        if name in _TIMES:
            values = [moment_of(text) for text in values]
        elif name == DETAILS:
            values = [msgspec.json.encode(details).decode() for details in values]
        columns[name] = values
    return pa.table(columns, schema=arrow_schema(SCHEMA, list(names)))
