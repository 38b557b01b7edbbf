"""What `tidegate up` follows: the pipelines' ledgers, which tell of checkpoints, and Airflow, which tells of runs."""

from __future__ import annotations

import contextlib
from typing import Any

from tidegate.checkpoint.control import Suspended, resume, suspended
from tidegate.cli.inspect.documents import checkpoint_document
from tidegate.cli.up.airflow import Airflow, Dag, DagRun
from tidegate.config import Settings
from tidegate.errors import Unavailable
from tidegate.history.query import view_of
from tidegate.ledger.ledger import Ledger, open_ledger

__all__ = ["Followed", "FollowedPipelines"]


class Followed:
    """One pipeline, from the moment at which it was first seen: what was decided before is no news."""

    def __init__(self, dag: Dag, ledger: Ledger, runs: list[DagRun]) -> None:
        self.dag = dag
        self.ledger = ledger
        self._pending: set[int] = set()
        self._last = 0
        self._told_runs = {run.id for run in runs if not run.active}
        for id in self._new():
            entry = ledger.entry(id)
            if entry is not None and entry.open:
                self._pending.add(id)

    @property
    def open(self) -> list[int]:
        """Checkpoints that are not decided, or not on all tables yet."""
        return sorted(self._pending)

    def open_in_runs(self) -> list[int]:
        """Those of them that runs of the DAG make: whoever else makes one, brings it to its end, too."""
        prefix = f"airflow:{self.dag.id}:"
        entries = {id: self.ledger.entry(id) for id in self.open}
        return [id for id, entry in entries.items() if entry is not None and entry.plan.run.startswith(prefix)]

    def decided(self) -> list[dict[str, Any]]:
        """What has been decided since the last call, and is visible; as `tidegate list --json` tells it. What cannot be
        read now is told when it can."""
        with contextlib.suppress(Unavailable):
            self._pending.update(self._new())
        news = []
        for id in sorted(self._pending):
            try:
                entry = self.ledger.entry(id)
                view = view_of(self.ledger, entry, sizes=False) if entry is not None else None
                over = self.ledger.retired(id) if entry is None else entry.control is not None
            except Unavailable:
                continue
            if over or (entry is not None and entry.restart is not None):  # that is no checkpoint
                self._pending.discard(id)
                continue
            if view is not None and view.shown_state in ("completed", "aborted"):
                self._pending.discard(id)
                news.append(checkpoint_document(view, {}))
        return news

    def suspended(self) -> Suspended | None:
        """Why its runs make no checkpoint, by the settings with which it last planned one."""
        if self.ledger.identity() is None:
            return None
        view = self.ledger.view()
        plans = [entry.plan for entry in view.entries if entry.control is None]
        tolerable = plans[-1].config.get("tolerable_failed_checkpoints", 0) if plans else 0
        return suspended(view, tolerable if isinstance(tolerable, int) else 0)

    def start_again(self) -> str:
        """Started by a person, a pipeline that had failed too often goes on, as with `tidegate run`; one that a person
        suspended does not. What there is to tell of it."""
        found = self.suspended()
        if found is None or not found.failed:
            return ""
        resume(self.ledger, "tidegate up", "started again")
        failed = ", ".join(map(str, found.failed))
        return f"{self.dag.pipeline} goes on: it was suspended because checkpoint {failed} failed"

    def failed(self, runs: list[DagRun]) -> list[DagRun]:
        """Runs that have failed since the last call, the oldest first."""
        ended = [run for run in reversed(runs) if not run.active and run.id not in self._told_runs]
        self._told_runs.update(run.id for run in ended)
        return [run for run in ended if run.state == "failed"]

    def _new(self) -> list[int]:
        """Ids that were not there at the last look."""
        if self.ledger.identity() is None:
            return []
        ids = self.ledger.ids(after=self._last)
        self._last = max(ids, default=self._last)
        return ids


class FollowedPipelines:
    """All pipelines of the project's DAGs. A DAG that was paused is unpaused when it is first seen, and not again."""

    def __init__(self, airflow: Airflow, settings: Settings) -> None:
        self._airflow = airflow
        self._settings = settings
        self.followed: dict[str, Followed] = {}
        self.news: list[str] = []
        """What a person is to be told of those that are new."""

    def look(self) -> list[Dag]:
        """Find DAGs that are new; answers with all that there are."""
        dags = self._airflow.dags()
        for dag in dags:
            known = self.followed.get(dag.id)
            if known is not None:
                known.dag = dag
                continue
            settings = self._settings
            ledger = open_ledger(settings.root, dag.pipeline, dict(settings.storage_options))
            self.followed[dag.id] = Followed(dag, ledger, self._airflow.runs(dag))
            if told := self.followed[dag.id].start_again():
                self.news.append(told)
            if dag.paused:
                self._airflow.unpause(dag)
        return dags
