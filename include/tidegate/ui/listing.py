"""The list of all pipelines: one row for each, for as many as there are.

A thousand ledgers cannot be read for each look at the list. A row is read again only if its pipeline's ledger has
changed, which the times of a few files tell; and a request reads for a bounded time. What it does not get to it leaves
as it was known, says so, and the next request continues there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate import seams
from tidegate.errors import TidegateError
from tidegate.history.query import view_of
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import View
from tidegate.records.place import is_url, local_path
from tidegate.records.records import Json
from tidegate.ui import views
from tidegate.ui.pipelines import Known

__all__ = ["BUDGET_S", "list_pipelines"]

BUDGET_S = 0.5
"""A request reads ledgers no longer than this."""
_LONGEST_S = 60.0
"""A row is read again after this, whatever the files' times say: two changes may have the same one."""
_STANDING = frozenset(
    {"new", "well", "failed", "skipping", "troubled", "suspended", "stopped", "cancelled", "finished"}
)
"""States that last until a file of the ledger changes. Others end by the clock, by a disk, or by a process."""
_UNKNOWN: Json = {
    "state": "",
    "good": True,
    "said": "not looked at yet",
    "cause": "",
    "remedy": [],
    "failures": 0,
    "in_progress": 0,
}


@dataclass(frozen=True)
class _Row:
    """What is known of a pipeline, since when, and of which state of its ledger."""

    pipeline: Known
    document: Json
    decided: str | None
    changed: tuple[int, ...]
    at: float

    def stands(self, pipeline: Known) -> bool:
        return (
            self.document["state"] in _STANDING
            and seams.monotonic() - self.at < _LONGEST_S
            and self.pipeline.card is pipeline.card
            and bool(self.changed)
            and self.changed == _changed(pipeline)
        )


_rows: dict[str, _Row] = {}
_reading = threading.Lock()


def list_pipelines(pipelines: Sequence[Known], until: float) -> tuple[list[Json], bool]:
    """Return a row for each of them, and whether all of them are as they are now.

    until: by `seams.monotonic`, when to stop reading. While another request reads, this one takes what is known.
    """
    due = [pipeline for pipeline in pipelines if not _stands(pipeline)]
    due.sort(key=lambda pipeline: row.at if (row := _rows.get(pipeline.dag_id)) else float("-inf"))
    alone = _reading.acquire(blocking=False)
    try:
        while alone and due and seams.monotonic() < until:
            pipeline = due.pop(0)
            _rows[pipeline.dag_id] = _read(pipeline)
    finally:
        if alone:
            _reading.release()
    return [_document(pipeline) for pipeline in pipelines], not due


def _stands(pipeline: Known) -> bool:
    row = _rows.get(pipeline.dag_id)
    return row is not None and row.stands(pipeline)


def _document(pipeline: Known) -> Json:
    named: Json = {"dag": pipeline.dag_id, "pipeline": pipeline.card.pipeline}
    named |= {"owner": pipeline.owner, "tags": list(pipeline.tags)}
    row = _rows.get(pipeline.dag_id)
    if row is None:
        return named | _UNKNOWN
    return named | row.document | {"age_seconds": views.age(row.decided)}


def _changed(pipeline: Known) -> tuple[int, ...]:
    """Return when the files changed on which a row in a standing state depends; (): that cannot be told."""
    if is_url(pipeline.root):
        return ()
    home = os.path.join(local_path(pipeline.root), pipeline.card.pipeline)
    names = ("", "checkpoints", "latest.json", "trouble.json", "pipeline.json", "savepoints", "lines")
    return tuple(_time(os.path.join(home, name)) for name in names)


def _time(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _read(pipeline: Known) -> _Row:
    """A damaged pipeline does not keep the others from being shown."""
    changed, at = _changed(pipeline), seams.monotonic()
    try:
        ledger = pipeline.ledger()
        observed, document = views.look_and_tell(pipeline, ledger)
        last = _last_completed(pipeline, ledger, observed.view)
        undecided = list(observed.view.still_open())
        document |= {
            "last_completed": views.short(last),
            "lag_seconds": last.lag_seconds if last is not None else None,
            "failures": sum(entry.aborted for entry in observed.view.entries if entry.id > (last.id if last else 0)),
            "in_progress": len(undecided),
        }
        return _Row(pipeline, document, last.decided if last is not None else None, changed, at)
    except TidegateError as error:
        damaged = {"state": "damaged", "good": False, "said": error.what, "cause": "", "remedy": [error.help]}
        damaged |= {"failures": 0, "in_progress": 0}
        return _Row(pipeline, damaged, None, changed, at)


def _last_completed(pipeline: Known, ledger: Ledger, view: View) -> CheckpointView | None:
    """The last completed checkpoint that counts. It is in the view unless somebody has just rolled back."""
    entry = view.last_completed
    if entry is None or entry.rollback is not None or entry.control is not None:
        return pipeline.past().newest("completed")
    return view_of(ledger, entry, sizes=False)
