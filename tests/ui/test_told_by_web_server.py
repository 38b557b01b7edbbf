"""Airflow's web server tells other DAGs what no task tells them, once: by its real database and a ledger made by hand.
`tests/dags/test_asset_events.py` has a whole Airflow do it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.kit.toy_world import ToyWorld
from tests.kit.waiting import eventually
from tests.ui.known_dags import put_dag
from tidegate.ledger.ledger import stamp
from tidegate.records.records import Announced
from tidegate.seams import new_id
from tidegate.ui.asset_events import announcer
from tidegate.ui.asset_events.announcer import Announcer, announce
from tidegate.ui.pipelines import PipelineRef, find_known_pipeline

SHOP = """
from tidegate import Pipeline
from tidegate.dag import build_dag
from tidegate.sinks import DeltaAppend
from tidegate.sources import Generator

pipeline = Pipeline({name!r}, interval="never", root={{root!r}}, data={{root!r}})
rows = pipeline.source("in", Generator(rows=3))
rows.sink("a", DeltaAppend("tables/a"))
rows.sink("b", DeltaAppend("tables/b"))
dag = build_dag(pipeline, project={{root!r}})
"""
READER = """
from airflow.sdk import DAG, Asset
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG({name!r}, schedule=[Asset("file://{{root}}/tables/a")], catchup=False) as dag:
    EmptyOperator(task_id="note")
"""


class Shop:
    """A pipeline whose DAG is paused, and somebody else's DAG, which is scheduled on the table of its sink a."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.reader = f"{name}_report"
        put_dag(root, name, SHOP.format(name=name))
        put_dag(root, self.reader, READER.format(name=self.reader))
        self.world = ToyWorld(root, bound=100)
        self.world.name = name
        _pause(name, paused=True)
        _pause(self.reader, paused=False)

    @property
    def pipeline(self) -> PipelineRef:
        found = find_known_pipeline(self.name)
        assert found is not None
        return found

    def told(self) -> list[dict[str, Any]]:
        """What the events of the table say, in their order."""
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        uri = f"file://{self.world.root}/tables/a"
        query = (
            select(AssetEvent.extra)
            .join(AssetModel, AssetModel.id == AssetEvent.asset_id)
            .where(AssetModel.uri == uri)
            .order_by(AssetEvent.id)
        )
        with create_session(scoped=False) as session:
            return [dict(extra) for extra in session.scalars(query)]

    def is_reader_due(self) -> bool:
        """Whether Airflow's scheduler is to make a run of the other DAG."""
        from airflow.models.asset import AssetDagRunQueue
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session(scoped=False) as session:
            queued = select(AssetDagRunQueue.target_dag_id).where(AssetDagRunQueue.target_dag_id == self.reader)
            return session.scalar(queued) is not None


def _pause(dag_id: str, *, paused: bool) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session(scoped=False) as session:
        session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=paused))


NUMBERS = itertools.count()


@pytest.fixture
def shop(app: Any, tmp_path: Path) -> Shop:
    return Shop(tmp_path, f"shop_{next(NUMBERS)}")


def causes(shop: Shop) -> list[tuple[str, int]]:
    return [(extra["cause"], extra["checkpoint"]) for extra in shop.told()]


def test_what_commands_have_decided_is_told_once_though_the_dag_is_paused(shop: Shop) -> None:
    first = shop.world.checkpoint("local:of a command", rows=2)
    empty = shop.world.checkpoint("local:of a command too")
    settled = announce(shop.pipeline)
    assert causes(shop) == [("checkpoint", first)], "not the empty one"
    assert shop.is_reader_due()
    undone = shop.world.checkpoint("local:wrong prices", rows=1)
    shop.world.coordinator().roll_back(first, run="local:rollback", by="ann", reason="wrong prices")
    settled = announce(shop.pipeline, settled)
    assert causes(shop) == [("checkpoint", first), ("checkpoint", undone), ("rollback", undone + 1)]
    back = shop.told()[-1]
    assert (back["back_to"], back["reason"], back["rows"]) == (first, "wrong prices", 0)
    assert (shop.told()[0]["rows"], empty) == (2, first + 1)

    for last in (settled, None):  # the same server, and one that has just started
        announce(shop.pipeline, last)
    assert len(shop.told()) == 3


def test_an_entry_that_somebody_else_tells_of_is_left_to_them(shop: Shop) -> None:
    id = shop.world.checkpoint("local:of a command", rows=2)
    claim = Announced(**stamp(new_id()), id=id, by=f"airflow:{shop.name}:next run")
    shop.world.ledger.create_announced(claim)
    announce(shop.pipeline)
    entry = shop.world.ledger.entry(id)
    events = shop.pipeline.card.events
    assert entry is not None
    assert events is not None
    announcer._send(shop.pipeline, events, shop.world.ledger, entry)  # they were faster by a moment
    assert shop.told() == []


def test_a_run_of_airflows_tells_of_its_own_checkpoint_itself(shop: Shop) -> None:
    shop.world.checkpoint(f"airflow:{shop.name}:run 1", rows=2)
    announce(shop.pipeline)
    assert shop.told() == []


@pytest.mark.parametrize("state", ["failed", "skipped", "upstream_failed"])
def test_a_run_that_has_ended_without_telling_is_told_of(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(announcer._TASKS, "find_state", lambda sender: state)
    id = shop.world.checkpoint(f"airflow:{shop.name}:run 1", rows=2)
    announce(shop.pipeline)
    assert causes(shop) == [("checkpoint", id)]


def test_a_run_whose_last_task_waits_or_runs_may_still_tell(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    state = "up_for_retry"
    monkeypatch.setattr(announcer._TASKS, "find_state", lambda sender: state)
    id = shop.world.checkpoint(f"airflow:{shop.name}:run 1", rows=2)
    assert announce(shop.pipeline) is None, "it has to be looked at again"
    assert shop.told() == []
    state = "failed"
    announce(shop.pipeline)
    assert causes(shop) == [("checkpoint", id)]


def test_a_task_that_has_claimed_an_entry_and_failed_leaves_it_to_the_server(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = "running"
    monkeypatch.setattr(announcer._TASKS, "find_state", lambda sender: state)
    run = f"airflow:{shop.name}:run 1"
    id = shop.world.checkpoint(run, rows=2)
    shop.world.ledger.create_announced(Announced(**stamp(new_id()), id=id, by=run))
    assert announce(shop.pipeline) is None, "it has to be looked at again"
    assert shop.told() == []
    state = "failed"
    announce(shop.pipeline)
    announce(shop.pipeline)
    assert causes(shop) == [("checkpoint", id)]


def test_a_checkpoint_that_no_table_will_ever_show_does_not_hold_up_its_rollback(shop: Shop) -> None:
    first = shop.world.checkpoint("local:of a command", rows=2)
    shop.world.weather.stuck.add("a")
    undone = shop.world.checkpoint("local:wrong prices", rows=1)
    assert announce(shop.pipeline) is None
    shop.world.coordinator().roll_back(first, run="local:rollback", by="ann", reason="wrong prices")
    shop.world.weather.stuck.clear()
    shop.world.publish()
    announce(shop.pipeline)
    assert causes(shop) == [("checkpoint", first), ("rollback", undone + 1)]


def test_a_ledger_that_cannot_be_read_is_looked_at_more_and_more_rarely() -> None:
    pipeline = PipelineRef("shop", cast(Any, SimpleNamespace(root="/data")), "", ())
    seen = announcer._Looked(at=1000.0)
    assert seen.is_due(pipeline, 1000.0)
    seen.failures = 1
    assert not seen.is_due(pipeline, 1039.0)
    assert seen.is_due(pipeline, 1040.0)
    seen.failures = 50
    assert not seen.is_due(pipeline, 1599.0)
    assert seen.is_due(pipeline, 1600.0)


def test_what_no_table_shows_yet_is_told_when_it_does(shop: Shop) -> None:
    shop.world.weather.stuck.add("a")
    id = shop.world.checkpoint("local:of a command", rows=2)
    assert announce(shop.pipeline) is None
    assert shop.told() == []
    shop.world.weather.stuck.clear()
    shop.world.publish()
    announce(shop.pipeline)
    assert causes(shop) == [("checkpoint", id)]


def test_a_history_is_no_news(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.world.checkpoint("local:of a command", rows=2)
    monkeypatch.setattr(announcer, "MAX_AGE_S", -1.0)
    announce(shop.pipeline)
    assert shop.told() == []


def test_a_claim_is_given_up_if_airflow_does_not_take_the_events(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.orm import Session

    id = shop.world.checkpoint("local:of a command", rows=2)

    def refuse(session: Session) -> None:
        if shop.world.ledger.announced(id) is not None:
            raise RuntimeError("the database is away")

    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", refuse)
        with pytest.raises(RuntimeError):
            announce(shop.pipeline)
    assert shop.world.ledger.announced(id) is None
    announce(shop.pipeline)
    assert causes(shop) == [("checkpoint", id)]


def test_a_pipeline_that_cannot_be_read_holds_up_no_other(shop: Shop, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    broken = Shop(elsewhere, f"{shop.name}_x")
    id = broken.world.checkpoint("local:of a command", rows=1)
    for record in broken.world.folder.glob("checkpoints/*/plan.json"):
        record.write_text(json.dumps({"format": 1}))
    shop.world.checkpoint("local:of a command", rows=2)
    Announcer().look()
    assert (causes(shop), broken.told(), id) == ([("checkpoint", 1)], [], 1)


def test_the_web_server_looks_by_itself(shop: Shop, served: str) -> None:
    shop.world.checkpoint("local:of a command", rows=2)
    eventually("it has told", lambda: causes(shop) == [("checkpoint", 1)])
