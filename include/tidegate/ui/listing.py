"""The list of all pipelines, and their metrics: of each, for as many as there are.

A thousand ledgers cannot be read for each look at the list, or for each scrape. A row is read again only if its
pipeline's ledger has changed, which the times of a few files tell; and a request reads for a bounded time. What it does
not get to it leaves as it was known, says so, and the next request continues there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tidegate import seams
from tidegate.errors import TidegateError, name_of
from tidegate.history.metrics import READ_AGE, Metric, figures, metrics
from tidegate.history.query import view_of
from tidegate.history.selection import ENDED
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry, View
from tidegate.records.place import is_url, local_path
from tidegate.records.records import Json
from tidegate.ui import views
from tidegate.ui.pipelines import PipelineRef

__all__ = ["BUDGET_S", "list_pipelines", "metrics_of"]

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class _Row:
    """A row of the list."""

    document: Json
    without_rows: Json | None = None
    """The same for those who may not read rows, if it differs."""
    decided: str | None = None
    """When the last checkpoint was."""


BUDGET_S = 0.5
"""A request reads ledgers no longer than this."""
_MAX_AGE_S = 60.0
"""A row is read again after this, whatever the files' times say: two changes may have the same one."""
_STANDING = frozenset(
    {
        "new",
        "well",
        "behind",
        "losing",
        "failed",
        "skipping",
        "troubled",
        "suspended",
        "stopped",
        "cancelled",
        "finished",
    }
)
"""States that last until a file of the ledger changes. Others end by the clock, by a disk, or by a process."""
_UNKNOWN: Json = {
    "state": "",
    "needs_nothing": True,
    "summary": "not looked at yet",
    "cause": "",
    "remedy": [],
    "failures": 0,
    "in_progress": 0,
}


@dataclass(frozen=True)
class _CachedPipeline(Generic[T]):
    """What is known of a pipeline, since when, and of which state of its ledger."""

    pipeline: PipelineRef
    document: T
    state: bool
    changed: tuple[int, ...]
    read_at: float


class InTurn(Generic[T]):
    """Something of each pipeline's ledger, read again only if that has changed, and for a bounded time.

    read: returns it, and whether that holds until a file of the ledger changes.
    """

    def __init__(self, read: Callable[[PipelineRef], tuple[T, bool]], longest_s: float) -> None:
        self._read = read
        self._longest_s = longest_s
        self.known: dict[str, _CachedPipeline[T]] = {}
        self.reading = threading.Lock()

    def update(self, pipelines: Sequence[PipelineRef], until: float) -> bool:
        """Read what is due, the longest known first. Return whether all is known as it is now.

        until: by `seams.monotonic`, when to stop. While another request reads, this one takes what is known.
        """
        due = [pipeline for pipeline in pipelines if not self._is_current(pipeline)]
        due.sort(key=lambda pipeline: row.read_at if (row := self.known.get(pipeline.dag_id)) else float("-inf"))
        alone = self.reading.acquire(blocking=False)
        try:
            while alone and due and seams.monotonic() < until:
                pipeline = due.pop(0)
                changed, at = _changed(pipeline), seams.monotonic()
                told, standing = self._read(pipeline)
                self.known[pipeline.dag_id] = _CachedPipeline(pipeline, told, standing, changed, at)
        finally:
            if alone:
                self.reading.release()
        return not due

    def _is_current(self, pipeline: PipelineRef) -> bool:
        row = self.known.get(pipeline.dag_id)
        return (
            row is not None
            and row.state
            and seams.monotonic() - row.read_at < self._longest_s
            and row.pipeline.card is pipeline.card
            and bool(row.changed)
            and row.changed == _changed(pipeline)
        )


def list_pipelines(
    pipelines: Sequence[PipelineRef], until: float, may_read_rows: Callable[[str], bool]
) -> tuple[list[Json], bool]:
    """Return a row for each of them, and whether all of them are as they are now.

    may_read_rows: whether whoever asks may read rows of a DAG's pipeline. It is only called where that matters.
    """
    complete = _list.update(pipelines, until)
    return [_document(pipeline, may_read_rows) for pipeline in pipelines], complete


def metrics_of(pipelines: Sequence[PipelineRef], until: float) -> dict[str, list[Metric]]:
    """Return the metrics of each, by its name, as of when they were read last: they tell how long ago that was. One
    that has never been read yet is left out: the next scrape goes on there."""
    _metrics.update(pipelines, until)
    found: dict[str, list[Metric]] = {}
    for pipeline in pipelines:
        row = _metrics.known.get(pipeline.dag_id)
        if row is not None:
            age_ms = round((seams.monotonic() - row.read_at) * 1000)
            found[pipeline.card.pipeline] = [
                Metric(READ_AGE, age_ms) if metric.name == READ_AGE else metric for metric in row.document
            ]
    return found


def _read_metrics(pipeline: PipelineRef) -> tuple[list[Metric], bool]:
    """A pipeline that cannot be read, for whatever reason, hides no other."""
    try:
        # The web server cannot see whether a process on another machine has died.
        found = figures(pipeline.ledger(), pipeline, pipeline.options, lambda plan: None, seams.now())
        return metrics(found), found.health.state in _STANDING
    except Exception as error:
        _reported(pipeline, error)
        return [Metric("readable", 0)], False


def _reported(pipeline: PipelineRef, error: Exception) -> TidegateError:
    """Return what to say of an error. Of one that nobody has foreseen, the log gets the traceback: its message might
    quote a row, and is for no page."""
    if isinstance(error, TidegateError):
        return error
    log.error("Pipeline %s cannot be read", pipeline.card.pipeline, exc_info=error)
    help = "the log of Airflow's web server has the traceback; please report it"
    return TidegateError(f"{name_of(error)}: this should not happen", help=help, reason="UNEXPECTED")


def _document(pipeline: PipelineRef, may_read_rows: Callable[[str], bool]) -> Json:
    named: Json = {"dag": pipeline.dag_id, "pipeline": pipeline.card.pipeline}
    named |= {"owner": pipeline.owner, "tags": list(pipeline.tags)}
    row = _rows.get(pipeline.dag_id)
    if row is None:
        return named | _UNKNOWN
    told, document = row.document, row.document.document
    if told.without_rows is not None and not may_read_rows(pipeline.dag_id):
        document = told.without_rows
    return named | document | {"age_seconds": views.age(told.decided)}


def _changed(pipeline: PipelineRef) -> tuple[int, ...]:
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


def _read(pipeline: PipelineRef) -> tuple[_Row, bool]:
    """A pipeline that cannot be read, for whatever reason, does not keep the others from being shown."""
    try:
        ledger = pipeline.ledger()
        observed = views.observe_pipeline(pipeline, ledger)
        document = views.health_answer(pipeline, observed)
        hidden = views.health_answer(pipeline, observed.without_rows())
        last = _last_completed(pipeline, ledger, observed.view)
        undecided = list(observed.view.still_open())
        counted = {
            "last_completed": views.short(last),
            "lag_seconds": last.lag_seconds if last is not None else None,
            "failures": sum(_failed(entry) for entry in observed.view.entries if entry.id > (last.id if last else 0)),
            "in_progress": len(undecided),
        }
        other = hidden | counted if hidden != document else None
        decided = last.decided if last is not None else None
        return _Row(document | counted, other, decided), document["state"] in _STANDING
    except Exception as error:
        report = _reported(pipeline, error)
        damaged = {
            "state": "damaged",
            "needs_nothing": False,
            "summary": report.what,
            "cause": "",
            "remedy": [report.help],
            "failures": 0,
            "in_progress": 0,
        }
        return _Row(damaged), False


def _failed(entry: Entry) -> bool:
    """Whether it is a checkpoint that failed: not an act of somebody, nor ended by one."""
    ended = entry.decision is not None and entry.decision.reason in ENDED
    return entry.aborted and entry.control is None and not ended


def _last_completed(pipeline: PipelineRef, ledger: Ledger, view: View) -> CheckpointView | None:
    """The last completed checkpoint whose input counts. It is in the view unless somebody has just rolled back."""
    entry = view.last_completed
    if entry is None or entry.rollback is not None or entry.control is not None:
        return pipeline.past().last_completed()
    return view_of(ledger, entry, sizes=False)


_list: InTurn[_Row] = InTurn(lambda pipeline: _read(pipeline), _MAX_AGE_S)
_rows, _reading = _list.known, _list.reading
_metrics: InTurn[list[Metric]] = InTurn(lambda pipeline: _read_metrics(pipeline), _MAX_AGE_S)
