"""The history: a Delta table with a row for each checkpoint that was ever decided, long after its records are gone.

    <root>/<pipeline>/history/     one row per settled entry, in the order of ids (delta/journal.py)

Rows are written after a publish, before retention removes the records that they are made from, by whichever process
gets there: all that is settled and not there yet, in one commit whose transaction is the highest id in it. So each row
is there once. No decision and no publish waits for it, and none fails with it: errors here go to the log, and
`tidegate doctor` reports them.
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
"""The table's folder, beside the checkpoints."""
BATCH = 500
"""At most this many rows in one commit: a ledger that is older than its history is read in parts."""
CLEAN_EVERY = 50
"""After this many entries, files that crashes have left are removed, and the old part of the table's log."""
RACES = 5
"""How many lost races are tolerated before the rest is left to the winners."""

DETAILS: Final = "details"
"""The column that has the details, as JSON."""
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
"""What a list shows and sorts by."""


def journal_of(ledger: Ledger, options: Mapping[str, str]) -> Journal:
    """The history's table. Its transaction carries the pipeline's uid: a pipeline that begins anew has its own rows."""
    identity = ledger.identity_or_none()
    uid = identity.uid if identity is not None else ""
    return Journal(Location(f"{ledger.home}/{HISTORY}", options), SCHEMA, "id", f"tidegate-history/{uid}")


def remember(ledger: Ledger, options: Mapping[str, str]) -> int:
    """Write down what is settled and not there yet; return the number of rows. Never raises."""
    try:
        return _remember(ledger, journal_of(ledger, options))
    except Exception as error:
        log.warning(
            "The history of pipeline %s could not be written: %s. No checkpoint is harmed; what retention removes "
            "until it works is missing there for good. `tidegate doctor %s` looks at it",
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
        ids = ledger.ids(after=last, before=settled + 1)[:BATCH] if settled > last else []
        rows = [row for id in ids if (row := _row(ledger, id)) is not None]
        if not rows:
            return written
        if journal.add(snapshot, rows_table(rows), _stamp(ledger, journal, rows[-1].id)) is None:
            races += 1
            continue
        written += len(rows)
        if any(id % CLEAN_EVERY == 0 for id in ids) and (now := journal.opened()) is not None:
            journal.clean(now)
        if len(ids) < BATCH:
            return written
    return written


def _row(ledger: Ledger, id: int) -> HistoryRow | None:
    """None if it is retired, or unreadable: `tidegate doctor` reports that, and the other rows are written."""
    try:
        entry = ledger.entry(id)
        return live_row(ledger, entry) if entry is not None else None
    except TidegateError as error:
        log.warning("Checkpoint %s of pipeline %s is missing in its history: %s", id, ledger.pipeline, error.what)
        return None


def live_row(ledger: Ledger, entry: Entry, *, sizes: bool = True) -> HistoryRow:
    """The row of an entry, as its records are now.

    sizes: with the sizes of states and of what is in flight, for which further records must be read.
    """
    published = ledger.published(entry.id)
    if not sizes:
        return row_of(entry, published, {}, {})
    return row_of(entry, published, _state_sizes(ledger, entry), _in_flight(ledger, entry))


def _state_sizes(ledger: Ledger, entry: Entry) -> dict[str, StateSize]:
    """The size of each state, from the record that its ack names."""
    sizes = {}
    for name, payload in states_of(entry).items():
        state = typed.convert(ledger.unpack(payload), StateTable)
        sizes[name] = StateSize(
            rows=sum(each.file.rows for each in state.files),
            bytes=sum(each.file.size for each in state.files),
            delta=sum(each.file.size for each in state.files if each.checkpoint == entry.id),
            files=len(state.files),
            unmerged=debt(state.files),
        )
    return sizes


def _in_flight(ledger: Ledger, entry: Entry) -> dict[str, Amount]:
    """By job that the checkpoint went past, how much the job has yet to take."""
    if entry.manifest is None or entry.rollback is not None:
        return {}
    return {
        job: sum_of(_sent(ledger, payload) for part in waiting for payload in part.channels.values())
        for job, waiting in entry.manifest.in_flight.items()
    }


def _sent(ledger: Ledger, payload: Payload) -> Amount:
    """The amount in a channel's record. It is unknown if the record is lost: the rest is reported all the same."""
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
    """Rows as the table has them, with these columns; by default with all."""
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
