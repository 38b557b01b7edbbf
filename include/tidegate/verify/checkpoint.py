"""Verifies one checkpoint: all records, versions, hashes and files that a rollback to it would need.

A rollback makes the same checks (lifecycle/rollback_preview.py). Here nothing is changed afterwards, so later commits
by other writers are no problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.errors import Corrupt, Rejected
from tidegate.lifecycle.rollback_preview import How, examine
from tidegate.lifecycle.savepoint import find

if TYPE_CHECKING:
    from tidegate.checkpoint.context import PipelineContext

__all__ = ["verify_checkpoint", "verify_savepoint"]


def verify_checkpoint(pipeline: PipelineContext, id: int) -> list[str]:
    """Return what is damaged of checkpoint `id`; empty: it is whole."""
    try:
        return _problems(pipeline, id)
    except (Corrupt, Rejected) as error:
        return [error.what]


def verify_savepoint(pipeline: PipelineContext, name: str) -> list[str]:
    """Return what is damaged of the savepoint's checkpoint, or that it is no longer the checkpoint that was named."""
    savepoint = find(pipeline.ledger, name)
    try:
        problems = _problems(pipeline, savepoint.entry)
    except (Corrupt, Rejected) as error:
        return [error.what]
    decision = pipeline.ledger.decision(savepoint.entry)
    if decision is None or decision.manifest != savepoint.pin.manifest:
        problems.append(f"checkpoint {savepoint.entry} is not the one that was named: its manifest is another one")
    return problems


def _problems(pipeline: PipelineContext, id: int) -> list[str]:
    choices: dict[str, How] = dict.fromkeys(pipeline.graph.sinks, "keep")  # nothing is put back
    return list(examine(pipeline, id, choices).problems)
