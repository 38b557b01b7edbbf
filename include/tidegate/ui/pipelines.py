"""The pipelines, from the cards that DAGs leave in Airflow's database. Their code is not run here.

A connection to that database is given back before anything else is done, not at the end of the request, as one from
Airflow's `SessionDep` would be. Airflow 3.3.2 looks up the token of every request in its event loop: when all
connections of its pool are taken, the loop waits for one; and what returns one at the end of a request needs the loop.
Twenty requests at once stopped the whole web server for half a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from airflow.models.dag import DagModel, DagTag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import select
from sqlalchemy.orm import Session

from tidegate.config import load_settings
from tidegate.errors import Rejected
from tidegate.history.query import CheckpointHistory
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.pipeline.card import Card, read_card
from tidegate.records.names import BACKFILL
from tidegate.records.place import is_url

__all__ = ["Known", "is_known", "known", "known_pipelines"]

TAG = "tidegate"
"""Every DAG that `build_dag` has made carries it."""


@dataclass(frozen=True)
class Known:
    """A pipeline, and the DAG that runs it."""

    dag_id: str
    card: Card

    @property
    def tolerable_failed_checkpoints(self) -> int:
        return self.card.tolerable_failed_checkpoints

    @property
    def root(self) -> str:
        return self.card.root

    @property
    def data(self) -> str:
        return self.card.data

    @property
    def options(self) -> dict[str, str]:
        """Return the options to log in to the ledger's store. Secrets are in no card: they are this process's own
        settings."""
        if not is_url(self.card.root):
            return {}
        return dict(load_settings(start=Path(self.card.project)).storage_options)

    def ledger(self) -> Ledger:
        """Its ledger."""
        return open_ledger(self.card.root, self.card.pipeline, self.options)

    def past(self) -> CheckpointHistory:
        """Its history."""
        return CheckpointHistory(self.ledger(), self.options)


_cards: dict[str, tuple[str, Card | None]] = {}
_lock = threading.Lock()


def known_pipelines(dag_ids: Iterable[str]) -> list[Known]:
    """Return the DAGs that are pipelines."""
    with create_session(scoped=False) as session:
        tagged = set(session.scalars(select(DagTag.dag_id).where(DagTag.name == TAG)))
        cards = [(dag_id, _card(session, dag_id)) for dag_id in sorted(tagged & set(dag_ids))]
    return [Known(dag_id, card) for dag_id, card in cards if card is not None]


def known(dag_id: str) -> Known:
    """The pipeline of a route's DAG, for FastAPI. Whether the user may see it is asked before."""
    with create_session(scoped=False) as session:
        card = _card(session, dag_id)
    if card is None and dag_id.endswith(BACKFILL):
        pipeline = dag_id.removesuffix(BACKFILL)
        raise Rejected(
            f"DAG {dag_id!r} computes again what that of {pipeline!r} has made, and has no checkpoints itself",
            expected=f"DAG {pipeline!r}",
            help=f"the page Checkpoints of DAG {pipeline!r} shows its backfills, and what each would change",
            reason="NO_SUCH_PIPELINE",
        )
    if card is None:
        raise Rejected(
            f"DAG {dag_id!r} is not known as a pipeline",
            expected="a DAG that `tidegate.dag.build_dag` has made, and that Airflow has parsed since",
            help="if it has just been deployed, wait until Airflow has read its file",
            reason="NO_SUCH_PIPELINE",
        )
    return Known(dag_id, card)


def is_known(dag_id: str) -> bool:
    """Whether Airflow has read a DAG of this id, and has it still."""
    with create_session(scoped=False) as session:
        return session.scalar(select(DagModel.dag_id).where(DagModel.dag_id == dag_id, ~DagModel.is_stale)) is not None


def _card(session: Session, dag_id: str) -> Card | None:
    """Looked up by the hash of Airflow's copy: reading all of it takes longer."""
    newest = (
        select(SerializedDagModel.dag_hash)
        .where(SerializedDagModel.dag_id == dag_id)
        .order_by(SerializedDagModel.created_at.desc())
        .limit(1)
    )
    version = session.scalar(newest)
    if version is None:
        return None
    cached = _cards.get(dag_id)
    if cached is not None and cached[0] == version:
        return cached[1]
    stored = SerializedDagModel.get(dag_id, session=session)
    tasks = (stored.data or {}).get("dag", {}).get("tasks", []) if stored is not None else []
    cards = (read_card(task.get("__var", task).get("doc_json")) for task in tasks)
    card = next((found_card for found_card in cards if found_card is not None), None)
    with _lock:
        _cards[dag_id] = version, card
    return card
