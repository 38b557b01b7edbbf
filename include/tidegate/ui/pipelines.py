"""The pipelines, from the cards that DAGs store in Airflow's database. Their code does not run here.

Each function returns its database connection at once, not at the end of the request, as Airflow's `SessionDep` would.
Airflow 3.3.2 looks up the token of every request in its event loop: when the connection pool is empty, the loop waits
for a connection, but returning one at the end of a request needs the loop. Twenty requests at once stopped the whole
web server for half a minute.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from airflow.models.dag import DagModel, DagTag
from airflow.models.dag_version import DagVersion
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from tidegate import seams
from tidegate.config import load_settings
from tidegate.errors import Rejected
from tidegate.history.query import CheckpointHistory
from tidegate.ledger.ledger import Ledger, open_ledger
from tidegate.pipeline.card import Card, read_card
from tidegate.records.airflow_login import _ask_airflow_with
from tidegate.records.names import BACKFILL
from tidegate.records.place import is_url
from tidegate.versions.airflow import find_connection

__all__ = [
    "PipelineRef",
    "dag_version",
    "find_known_pipeline",
    "find_pipeline",
    "find_pipelines",
    "has_dag",
    "is_paused",
    "run_states",
    "tagged",
]

TAG = "tidegate"
"""Every DAG that `build_dag` creates has it."""


@dataclass(frozen=True)
class PipelineRef:
    """A pipeline, and the DAG that runs it."""

    dag_id: str
    card: Card
    owner: str = ""
    """The DAG's owner in Airflow."""
    tags: tuple[str, ...] = ()
    """The DAG's tags in Airflow, without tidegate's own."""
    may_read_rows: bool = False
    """Whether the current user may read rows."""

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
    def options(self) -> Mapping[str, str]:
        """Return the login options of the stores of the ledger and the data, from this process's own settings: a card
        contains no secrets."""
        if not is_url(self.card.root) and not is_url(self.card.data):
            return {}
        _ask_airflow_with(find_connection)
        return load_settings(start=Path(self.card.project)).storage_options

    def ledger(self) -> Ledger:
        """Open the pipeline's ledger."""
        return open_ledger(self.card.root, self.card.pipeline, self.options)

    def past(self) -> CheckpointHistory:
        """Return the pipeline's history, as the user may see it."""
        return CheckpointHistory(self.ledger(), self.options, with_values=self.may_read_rows)


_cards: dict[str, tuple[str, Card | None]] = {}
_lock = threading.Lock()


def tagged() -> set[str]:
    """Return the DAGs that are pipelines, by their tag."""
    with create_session(scoped=False) as session:
        return set(session.scalars(_TAGGED))


def find_pipelines(dag_ids: Set[str], until: float = math.inf) -> tuple[list[PipelineRef], bool]:
    """Return the pipelines among these DAGs, and whether the list is complete.

    until: when to stop reading cards that are not cached, by `seams.monotonic`. Reading a thousand takes seconds.
    """
    pipelines, complete = [], True
    with create_session(scoped=False) as session:
        versions = _newest_versions(session)
        owners = dict(
            session.execute(select(DagModel.dag_id, DagModel.owners).where(DagModel.dag_id.in_(_TAGGED))).all()
        )
        tags: dict[str, list[str]] = {}
        for dag_id, name in session.execute(select(DagTag.dag_id, DagTag.name).where(DagTag.dag_id.in_(_TAGGED))):
            tags.setdefault(dag_id, []).append(name)
        for dag_id in sorted(versions.keys() & tags.keys() & dag_ids):
            version = versions[dag_id]
            if _cards.get(dag_id, ("", None))[0] != version and seams.monotonic() > until:
                complete = False
                continue
            card = _card_of(session, dag_id, version)
            if card is not None:
                user_tags = tuple(sorted(name for name in tags[dag_id] if name != TAG))
                pipelines.append(PipelineRef(dag_id, card, owners.get(dag_id) or "", user_tags))
    return pipelines, complete


_TAGGED = select(DagTag.dag_id).where(DagTag.name == TAG)


def _newest_versions(session: Session) -> dict[str, str]:
    """Return the hash of Airflow's newest copy of each pipeline's DAG, without reading the copies, which is slow."""
    copies = SerializedDagModel
    newest = (
        select(copies.dag_id, func.max(copies.created_at).label("at"))
        .where(copies.dag_id.in_(_TAGGED))
        .group_by(copies.dag_id)
        .subquery()
    )
    is_newest = and_(copies.dag_id == newest.c.dag_id, copies.created_at == newest.c.at)
    return dict(session.execute(select(copies.dag_id, copies.dag_hash).join(newest, is_newest)).all())


def find_known_pipeline(dag_id: str) -> PipelineRef | None:
    """Return the pipeline of a DAG, or None if the DAG is not a pipeline's."""
    with create_session(scoped=False) as session:
        card = _card(session, dag_id)
    if card is not None:
        return PipelineRef(dag_id, card)
    return None


def find_pipeline(dag_id: str) -> PipelineRef:
    """Return the pipeline of a route's DAG, for FastAPI. The route has already checked that the user may see it."""
    pipeline = find_known_pipeline(dag_id)
    if pipeline is not None:
        return pipeline
    if dag_id.endswith(BACKFILL):
        main_dag = dag_id.removesuffix(BACKFILL)
        raise Rejected(
            f"DAG {dag_id!r} runs backfills of {main_dag!r}, and has no checkpoints itself",
            expected=f"DAG {main_dag!r}",
            help=f"the page Checkpoints of DAG {main_dag!r} shows its backfills, and what each would change",
            reason="NO_SUCH_PIPELINE",
        )
    raise Rejected(
        f"DAG {dag_id!r} is not a pipeline's",
        expected="a DAG that `tidegate.dag.build_dag` has created, and that Airflow has parsed",
        help="if it has just been deployed, wait until Airflow has read its file",
        reason="NO_SUCH_PIPELINE",
    )


def has_dag(dag_id: str) -> bool:
    """Return whether Airflow has a DAG with this id."""
    with create_session(scoped=False) as session:
        return session.scalar(select(DagModel.dag_id).where(DagModel.dag_id == dag_id, ~DagModel.is_stale)) is not None


def run_states(names: Set[str]) -> dict[str, str]:
    """Return the states of runs, by the names that the ledger has for them, except of runs that Airflow has deleted."""
    runs = {name: tuple(name.split(":", 2)[1:]) for name in names if name.count(":") > 1}
    if not runs:
        return {}
    run_ids = {run_id for _, run_id in runs.values()}
    query = select(DagRun.dag_id, DagRun.run_id, DagRun.state).where(DagRun.run_id.in_(run_ids))
    states: dict[tuple[str, ...], str] = {}
    with create_session(scoped=False) as session:
        for dag_id, run_id, state in session.execute(query):
            states[dag_id, run_id] = str(getattr(state, "value", state))
    return {name: states[run] for name, run in runs.items() if run in states}


def dag_version(dag_id: str, run_id: str) -> int | None:
    """Return the version of the DAG that a run was created with, or None if Airflow does not know."""
    query = (
        select(DagVersion.version_number)
        .join(DagRun, DagRun.created_dag_version_id == DagVersion.id)
        .where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    )
    with create_session(scoped=False) as session:
        return session.scalar(query)


def is_paused(dag_id: str) -> bool:
    """Return whether the DAG is paused in Airflow, so that its runs wait."""
    with create_session(scoped=False) as session:
        return bool(session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id)))


def _card(session: Session, dag_id: str) -> Card | None:
    newest = (
        select(SerializedDagModel.dag_hash)
        .where(SerializedDagModel.dag_id == dag_id)
        .order_by(SerializedDagModel.created_at.desc())
        .limit(1)
    )
    version = session.scalar(newest)
    if version is not None:
        return _card_of(session, dag_id, version)
    return None


def _card_of(session: Session, dag_id: str, version: str) -> Card | None:
    cached = _cards.get(dag_id)
    if cached is not None and cached[0] == version:
        return cached[1]
    stored = SerializedDagModel.get(dag_id, session=session)
    if stored is not None:
        tasks = (stored.data or {}).get("dag", {}).get("tasks", [])
    else:
        tasks = []
    card = None
    for task in tasks:
        card = read_card(task.get("__var", task).get("doc_json"))
        if card is not None:
            break
    with _lock:
        _cards[dag_id] = version, card
    return card
