"""Links from tasks to tidegate's pages. Airflow shows them with a task's details, and returns them by REST."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

from tidegate.records.names import BACKFILL
from tidegate.versions.airflow import HAS_VIEWS, conf

__all__ = ["LINKS", "BackfillLink", "CheckpointLink", "QuarantineLink"]


class CheckpointLink(BaseOperatorLink):
    """From each task to its run's checkpoint."""

    name = "Checkpoint"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        if not HAS_VIEWS:
            return f"{_root()}/tidegate/run/{_path(ti_key.dag_id)}/{_path(ti_key.run_id)}"
        return f"{_root()}/dags/{_path(ti_key.dag_id)}/runs/{_path(ti_key.run_id)}/plugin/checkpoint"


class QuarantineLink(BaseOperatorLink):
    """From the task of a gate to the rows in its quarantine."""

    name = "Quarantine"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return _page(ti_key.dag_id)


class BackfillLink(BaseOperatorLink):
    """From each task of a backfill to the page of its pipeline, which shows and swaps in the result."""

    name = "Backfill"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return _page(ti_key.dag_id.removesuffix(BACKFILL))


LINKS: tuple[BaseOperatorLink, ...] = (CheckpointLink(), QuarantineLink(), BackfillLink())


def _page(dag_id: str) -> str:
    """Return the address of a pipeline's page."""
    if not HAS_VIEWS:
        return f"{_root()}/tidegate/dag/{_path(dag_id)}"
    return f"{_root()}/dags/{_path(dag_id)}/plugin/checkpoints"


def _root() -> str:
    """Return the path of Airflow's pages, without the host."""
    return urlsplit(str(conf.get("api", "base_url", fallback=""))).path.rstrip("/")


def _path(name: str) -> str:
    return quote(name, safe="")
