"""The list of all pipelines with their metrics, refreshed incrementally.

With a thousand pipelines, a request cannot read every ledger. A row is read again only if its pipeline's ledger has
changed, as the times of a few files show, and each request reads for a bounded time. Rows that it does not reach keep
their old content; the answer says so, and the next request continues there.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from tidegate import seams
from tidegate.errors import TidegateError, name_of
from tidegate.history.health import Observations
from tidegate.history.metrics import READ_AGE, Metric, figures, metrics
from tidegate.history.query import view_of
from tidegate.history.selection import ENDED
from tidegate.history.view import CheckpointView
from tidegate.ledger.ledger import Ledger
from tidegate.protocol.view import Entry, View
from tidegate.records.place import is_url, local_path
from tidegate.ui import views
from tidegate.ui.answers import HealthAnswer, ListedPipeline, RecentCheckpoints
from tidegate.ui.pipelines import PipelineRef

__all__ = ["BUDGET_S", "list_pipelines", "metrics_of"]

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class _Row:
    """A row of the list."""

    answer: ListedPipeline
    without_rows: ListedPipeline | None = None
    """The answer for users who may not read rows, if it differs."""
    decided: str | None = None
    """When the last checkpoint was decided."""


BUDGET_S = 0.5
"""The maximum time for which a request reads ledgers."""
_MAX_AGE_S = 60.0
"""A row is read again after this time in any case, because two changes may give a file the same time."""
_LASTING = frozenset(
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
"""States that last until a file of the ledger changes. The other states may end with time, or with a disk's or a
process's state."""


@dataclass(frozen=True)
class _CachedPipeline(Generic[T]):
    """A document about a pipeline, and what decides whether it is current."""

    pipeline: PipelineRef
    document: T
    is_lasting: bool
    """Whether it holds until a file of the ledger changes."""
    changed: tuple[int, ...]
    read_at: float


class PipelineCache(Generic[T]):
    """A document for each pipeline, read again only if its ledger has changed, and for a bounded time per request.

    read: returns the document, and whether it holds until a file of the ledger changes.
    """

    def __init__(self, read: Callable[[PipelineRef], tuple[T, bool]], max_age_s: float) -> None:
        self._read = read
        self._max_age_s = max_age_s
        self.cached: dict[str, _CachedPipeline[T]] = {}
        self.reading = threading.Lock()

    def update(self, pipelines: Sequence[PipelineRef], until: float) -> bool:
        """Read the documents that are not current, oldest first. Return whether all are current then.

        until: when to stop, by `seams.monotonic`. While another request reads, this one only uses the cache.
        """
        due = [pipeline for pipeline in pipelines if not self._is_current(pipeline)]
        due.sort(key=self._last_read)
        is_reader = self.reading.acquire(blocking=False)
        try:
            while is_reader and due and seams.monotonic() < until:
                pipeline = due.pop(0)
                changed, read_at = _changed(pipeline), seams.monotonic()
                document, is_lasting = self._read(pipeline)
                self.cached[pipeline.dag_id] = _CachedPipeline(pipeline, document, is_lasting, changed, read_at)
        finally:
            if is_reader:
                self.reading.release()
        return not due

    def _last_read(self, pipeline: PipelineRef) -> float:
        row = self.cached.get(pipeline.dag_id)
        return row.read_at if row is not None else float("-inf")

    def _is_current(self, pipeline: PipelineRef) -> bool:
        row = self.cached.get(pipeline.dag_id)
        return (
            row is not None
            and row.is_lasting
            and seams.monotonic() - row.read_at < self._max_age_s
            and row.pipeline.card is pipeline.card
            and bool(row.changed)
            and row.changed == _changed(pipeline)
        )


def list_pipelines(
    pipelines: Sequence[PipelineRef], until: float, may_read_rows: Callable[[str], bool]
) -> tuple[list[ListedPipeline], bool]:
    """Return a row for each pipeline, and whether all rows are current.

    may_read_rows: whether the user may read rows of a DAG's pipeline. Only called if that makes a difference.
    """
    complete = _list.update(pipelines, until)
    # Strips cost more to read than rows. Where there are very many, an old one is good enough until there is time.
    _strips.update(pipelines, until)
    has_strips = all(pipeline.dag_id in _strips.cached for pipeline in pipelines)
    return [_answer(pipeline, may_read_rows) for pipeline in pipelines], complete and has_strips


def metrics_of(pipelines: Sequence[PipelineRef], until: float) -> dict[str, list[Metric]]:
    """Return each pipeline's metrics as last read, by its name. The metric readAge says how old they are.

    A pipeline that was never read is left out: the next scrape continues there.
    """
    _metrics.update(pipelines, until)
    by_name: dict[str, list[Metric]] = {}
    for pipeline in pipelines:
        row = _metrics.cached.get(pipeline.dag_id)
        if row is not None:
            by_name[pipeline.card.pipeline] = _aged(row.document, round((seams.monotonic() - row.read_at) * 1000))
    return by_name


def _aged(metrics: list[Metric], age_ms: int) -> list[Metric]:
    """Return metrics that were read some time ago, with that time in the metric for it."""
    aged = []
    for metric in metrics:
        aged.append(Metric(READ_AGE, age_ms) if metric.name == READ_AGE else metric)
    return aged


def _read_metrics(pipeline: PipelineRef) -> tuple[list[Metric], bool]:
    """Return a pipeline's metrics, and whether they last. If it cannot be read, only the metric `readable`."""
    try:
        # The web server cannot see whether a process on another machine has died.
        current = figures(pipeline.ledger(), pipeline, pipeline.options, lambda plan: None, seams.now())
        return metrics(current), _lasts(current.health.state, current.observed)
    except Exception as error:
        _reported(pipeline, error)
        return [Metric("readable", 0)], False


def _lasts(state: str, observed: Observations) -> bool:
    """Return whether a pipeline's state lasts until a file of the ledger changes, and no promise breaks before that."""
    kept = [promise for promise in observed.promises if promise.is_kept]
    return state in _LASTING and all(promise.fresh_s - promise.age_s > _MAX_AGE_S for promise in kept)


def _reported(pipeline: PipelineRef, error: Exception) -> TidegateError:
    """Return the error to show. An unexpected one is only logged, because its message may quote a row."""
    if isinstance(error, TidegateError):
        return error
    log.error("Pipeline %s cannot be read", pipeline.card.pipeline, exc_info=error)
    help = "the log of Airflow's web server has the traceback; please report it"
    return TidegateError(f"{name_of(error)}: this should not happen", help=help, reason="UNEXPECTED")


def _answer(pipeline: PipelineRef, may_read_rows: Callable[[str], bool]) -> ListedPipeline:
    row = _rows.get(pipeline.dag_id)
    if row is None:
        return _listed(
            pipeline, HealthAnswer(state="", needs_nothing=True, summary="not read yet", cause="", remedy=[])
        )
    cached = row.document
    answer = cached.answer
    if cached.without_rows is not None and not may_read_rows(pipeline.dag_id):
        answer = cached.without_rows
    strip = _strips.cached.get(pipeline.dag_id)
    return msgspec.structs.replace(
        answer,
        owner=pipeline.owner,
        tags=list(pipeline.tags),
        age_seconds=views.age(cached.decided),
        recent=strip.document if strip is not None else None,
    )


def _listed(pipeline: PipelineRef, health: HealthAnswer, **figures: Any) -> ListedPipeline:
    return ListedPipeline(
        dag=pipeline.dag_id,
        pipeline=pipeline.card.pipeline,
        owner=pipeline.owner,
        tags=list(pipeline.tags),
        **msgspec.structs.asdict(health),
        **figures,
    )


def _changed(pipeline: PipelineRef) -> tuple[int, ...]:
    """Return the times of the files on which a lasting state depends, or () if they cannot be known."""
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
    """Return a pipeline's row, and whether it lasts. A pipeline that cannot be read must not hide the rest."""
    try:
        ledger = pipeline.ledger()
        observed = views.observe_pipeline(pipeline, ledger)
        health = views.health_answer(pipeline, observed)
        hidden = views.health_answer(pipeline, observed.without_rows())
        last = _last_completed(pipeline, ledger, observed.view)
        last_id = last.id if last is not None else 0
        figures = {
            "last_completed": views.short(last) if last is not None else None,
            "lag_seconds": last.lag_seconds if last is not None else None,
            "failures": sum(_failed(entry) for entry in observed.view.entries if entry.id > last_id),
            "in_progress": len(list(observed.view.still_open())),
            "promises": views.promise_answers(observed),
        }
        without_rows = None
        if hidden != health:
            without_rows = _listed(pipeline, hidden, **figures)
        decided = last.decided if last is not None else None
        return _Row(_listed(pipeline, health, **figures), without_rows, decided), _lasts(health.state, observed)
    except Exception as error:
        report = _reported(pipeline, error)
        damaged = HealthAnswer(
            state="damaged", needs_nothing=False, summary=report.what, cause="", remedy=[report.help]
        )
        return _Row(_listed(pipeline, damaged)), False


def _read_strip(pipeline: PipelineRef) -> tuple[RecentCheckpoints | None, bool]:
    """Return a pipeline's last checkpoints, and whether they last: an open one may end without a trace in the files
    that are looked at."""
    try:
        recent = views.recent_checkpoints(pipeline.past())
    except Exception as error:
        _reported(pipeline, error)
        return None, False
    return recent, not {"open", "held"} & set(recent.state[-5:])


def _failed(entry: Entry) -> bool:
    """Return whether an entry is a failed checkpoint: not a user's act, and not ended by one."""
    ended = entry.decision is not None and entry.decision.reason in ENDED
    return entry.aborted and entry.control is None and not ended


def _last_completed(pipeline: PipelineRef, ledger: Ledger, view: View) -> CheckpointView | None:
    """Return the last completed checkpoint whose input counts. It is in the view, except just after a rollback."""
    entry = view.last_completed
    if entry is None or entry.rollback is not None or entry.control is not None:
        return pipeline.past().last_completed()
    return view_of(ledger, entry, sizes=False)


_list: PipelineCache[_Row] = PipelineCache(lambda pipeline: _read(pipeline), _MAX_AGE_S)
_rows, _reading = _list.cached, _list.reading
_strips: PipelineCache[RecentCheckpoints | None] = PipelineCache(lambda pipeline: _read_strip(pipeline), _MAX_AGE_S)
_metrics: PipelineCache[list[Metric]] = PipelineCache(lambda pipeline: _read_metrics(pipeline), _MAX_AGE_S)
