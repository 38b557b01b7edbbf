"""The DAG for backfills, beside that of each pipeline that reads whatever is new. Its runs are asked for by hand: each
computes again, beside the pipeline, what that has made, as `tidegate backfill` does."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset

from tidegate.dag import document, run_params
from tidegate.dag.assets import AssetEvents
from tidegate.dag.names import POOL, SWAP
from tidegate.dag.tasks.backfill import CheckStep, CompareStep, DiscardStep, ReplayStep, SwapStep
from tidegate.pipeline import Pipeline
from tidegate.pipeline.graph.graph import Graph
from tidegate.records.names import backfill_dag

__all__ = ["build_backfill_dag"]

TAG = "tidegate-backfill"
_RUNS = 4
"""While one reads, others wait for the pool; one that discards need not."""


def build_backfill_dag(
    beside: DAG,
    pipeline: Pipeline,
    folder: str,
    graph: Graph,
    retries: dict[str, Any],
    *,
    outlets: list[Asset],
    asset_events: AssetEvents,
) -> DAG:
    """Return the DAG, registered with Airflow as that of the file which is being read."""
    dag = DAG(
        dag_id=backfill_dag(beside.dag_id),
        description=f"Compute again what pipeline {graph.name} has made, beside it, and swap it in",
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,  # nothing runs unless somebody asks for it, and then it is to run
        max_active_runs=_RUNS,
        default_args=beside.default_args,
        access_control=beside.access_control,
        doc_md=document.backfill_text(graph, beside.dag_id),
        tags=[TAG, graph.name],
        params=run_params.backfill_params(),
    )
    shared: dict[str, Any] = {"dag": dag, "pipeline": pipeline, "project": folder, **retries}
    # Below every task of a pipeline, and no more at once than the pool has slots for.
    heavy: dict[str, Any] = {"pool": POOL, "priority_weight": 0, "weight_rule": "absolute", "max_active_tis_per_dag": 1}
    check = CheckStep(task_id="check", doc_md=document.CHECK, **shared)
    replay = ReplayStep(task_id="replay", doc_md=document.REPLAY, **heavy, **shared)
    compare = CompareStep(task_id="compare", doc_md=document.COMPARE, **heavy, **shared)
    swap = SwapStep(task_id=SWAP, doc_md=document.SWAP, outlets=outlets, asset_events=asset_events, **heavy, **shared)
    discard = DiscardStep(task_id="discard", doc_md=document.DISCARD, **shared)
    replay.set_upstream(check)
    compare.set_upstream(replay)
    swap.set_upstream(compare)
    discard.set_upstream(check)
    with dag:  # so that Airflow finds it, though no name in the file stands for it
        return dag
