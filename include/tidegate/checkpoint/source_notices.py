"""Notify sources of the last completed checkpoint, and of the input that is no longer needed.

Both are only notices. They may be late or repeated, or missing if the source's system does not answer, which is logged.
Nothing in tidegate relies on them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.connectors.source import Source
from tidegate.errors import TidegateError
from tidegate.protocol.view import Entry
from tidegate.records.records import Json

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["notify_sources", "release_unneeded"]

log = logging.getLogger(__name__)


def notify_sources(pipeline: PipelineContext) -> None:
    """Notify each source that implements the hook of the position of the last completed checkpoint."""
    sources = []
    for name, source in _sources(pipeline):
        if type(source).on_checkpoint_completed is not Source.on_checkpoint_completed:
            sources.append(name)
    last = pipeline.ledger.view().last_completed if sources else None
    if last is None:
        return
    for name, end in _ends(last, sources):
        with _logging_failures(name, f"checkpoint {last.id} is completed"):
            pipeline.graph.sources[name].source.on_checkpoint_completed(end, pipeline.source_context(name))


def release_unneeded(pipeline: PipelineContext) -> None:
    """Notify each source that implements the hook of the position from which the oldest retained checkpoint would
    continue."""
    sources = []
    for name, source in _sources(pipeline):
        if type(source).release is not Source.release:
            sources.append(name)
    oldest = _oldest_completed(pipeline) if sources else None
    if oldest is None:
        return
    for name, end in _ends(oldest, sources):
        with _logging_failures(name, f"nothing before checkpoint {oldest.id} is needed any more"):
            pipeline.graph.sources[name].source.release(end, pipeline.source_context(name))


@contextlib.contextmanager
def _logging_failures(source: str, notice: str) -> Iterator[None]:
    try:
        yield
    except TidegateError as error:
        log.warning("Source %r could not be notified that %s: %s", source, notice, error)


def _oldest_completed(pipeline: PipelineContext) -> Entry | None:
    """Return the completed entry at whose end the oldest input begins that may still be read again.

    That is the oldest retained one, savepoints included, or a later rollback that returned to an older position. None
    if that is unknown: several later rollbacks qualify, or one of them is no longer retained.
    """
    ids, rollbacks = pipeline.ledger.ids(), pipeline.ledger.rollbacks()
    completed = (entry for entry in map(pipeline.real_entry, ids) if entry is not None and entry.completed)
    oldest, last = next(completed, None), pipeline.ledger.view().last_completed
    if oldest is None or last is None:
        return None
    since = [(id, target) for id, target in rollbacks if id > oldest.id]
    if oldest.plan.generation + len(since) != last.plan.generation:
        return None
    further_back = [id for id, target in since if target < oldest.id]
    if not further_back:
        return oldest
    if len(further_back) == 1:
        return pipeline.real_entry(further_back[0])
    return None


def _sources(pipeline: PipelineContext) -> Iterator[tuple[str, Source]]:
    return ((name, node.source) for name, node in pipeline.graph.sources.items())


def _ends(entry: Entry, sources: list[str]) -> Iterator[tuple[str, Json]]:
    for name in sources:
        part = entry.plan.sources.get(name)
        if part is not None and part.end is not None:
            yield name, part.end
