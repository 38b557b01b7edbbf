"""Follows the pipelines of `tidegate up`: checkpoints in their ledgers, and runs in Airflow."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from tidegate.checkpoint.suspension import SuspensionState, suspended
from tidegate.cli.inspect.documents import checkpoint_document
from tidegate.cli.up.airflow import Airflow, Dag, DagRun
from tidegate.config import Settings
from tidegate.errors import Unavailable
from tidegate.history.query import view_of
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.lifecycle.control import resume

__all__ = ["Followed", "FollowedPipelines"]


class Followed:
    """One pipeline, followed since it was first found: earlier decisions are not reported."""

    def __init__(self, dag: Dag, ledger: Ledger, runs: list[DagRun]) -> None:
        self.dag = dag
        self.ledger = ledger
        self._pending: set[int] = set()
        self._last = 0
        self._reported_runs = {run.id for run in runs if not run.active}
        for id in self._new():
            entry = ledger.entry(id)
            if entry is not None and entry.open:
                self._pending.add(id)

    @property
    def open(self) -> list[int]:
        """Checkpoints that are not decided, or not published to all tables yet."""
        return sorted(self._pending)

    def open_in_runs(self) -> list[int]:
        """Open checkpoints of the DAG's own runs. Other processes finish theirs."""
        prefix = f"airflow:{self.dag.id}:"
        entries = {id: self.ledger.entry(id) for id in self.open}
        return [id for id, entry in entries.items() if entry is not None and entry.plan.run.startswith(prefix)]

    def decided(self) -> list[dict[str, Any]]:
        """Return the checkpoints that were decided and became visible since the last call, as in `tidegate list`.
        Those that cannot be read now are returned later."""
        with contextlib.suppress(Unavailable):
            self._pending.update(self._new())
        news = []
        for id in sorted(self._pending):
            try:
                entry = self.ledger.entry(id)
                view = None
                if entry is not None:
                    view = view_of(self.ledger, entry, sizes=False)
                if entry is None:
                    over = self.ledger.retired(id)
                else:
                    over = entry.control is not None
            except Unavailable:
                continue
            if over or (entry is not None and entry.rollback is not None):  # not a checkpoint
                self._pending.discard(id)
                continue
            if view is not None and view.displayed_state in ("completed", "aborted"):
                self._pending.discard(id)
                news.append(checkpoint_document(view, {}))
        return news

    def suspended(self) -> SuspensionState | None:
        """Return why its runs make no checkpoint, by the settings of its last plan, or None if they do."""
        if self.ledger.identity() is None:
            return None
        view = self.ledger.view()
        plans = [entry.plan for entry in view.entries if entry.control is None]
        if plans:
            tolerable = plans[-1].config.get("tolerable_failed_checkpoints", 0)
        else:
            tolerable = 0
        return suspended(view, tolerable if isinstance(tolerable, int) else 0)

    def resume_after_failures(self) -> str:
        """Resume the pipeline if failures suspended it, as `tidegate run` does, because a user has started it. Do not
        if a user suspended it. Return the notice for the user, or ""."""
        suspension = self.suspended()
        if suspension is None or not suspension.failed_checkpoints:
            return ""
        resume(self.ledger, "tidegate up", "started again")
        failed = ", ".join(map(str, suspension.failed_checkpoints))
        return f"{self.dag.pipeline} is resumed: it was suspended because checkpoint {failed} failed"

    def failed(self, runs: list[DagRun]) -> list[DagRun]:
        """Return the runs that have failed since the last call, the oldest first."""
        ended = []
        for run in reversed(runs):
            if not run.active and run.id not in self._reported_runs:
                ended.append(run)
        self._reported_runs.update(run.id for run in ended)
        return [run for run in ended if run.state == "failed"]

    def _new(self) -> list[int]:
        """Return the ids that are new since the last call."""
        if self.ledger.identity() is None:
            return []
        ids = self.ledger.ids(after=self._last)
        self._last = max(ids, default=self._last)
        return ids


class FollowedPipelines:
    """The pipelines of the project's DAGs. A paused DAG is unpaused when it is first found, and not again."""

    def __init__(self, airflow: Airflow, settings: Settings, only: Collection[str] = ()) -> None:
        """only: the DAGs to follow; empty for all."""
        self._airflow = airflow
        self._settings = settings
        self._only = frozenset(only)
        self.followed: dict[str, Followed] = {}
        self.news: list[str] = []
        """Notices for the user about new pipelines."""

    def poll(self) -> list[Dag]:
        """Find new DAGs. Return all followed ones."""
        dags = [dag for dag in self._airflow.dags() if not self._only or dag.id in self._only]
        for dag in dags:
            followed = self.followed.get(dag.id)
            if followed is not None:
                followed.dag = dag
                continue
            settings = self._settings
            ledger = open_ledger(settings.root, dag.pipeline, settings.storage_options)
            self.followed[dag.id] = Followed(dag, ledger, self._airflow.runs(dag))
            if notice := self.followed[dag.id].resume_after_failures():
                self.news.append(notice)
            if dag.paused:
                self._airflow.unpause(dag)
        return dags
