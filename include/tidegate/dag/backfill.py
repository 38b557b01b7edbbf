"""The DAG for backfills of a continuous pipeline. Its runs are triggered by hand: each computes the pipeline's results
again, while the pipeline runs, as `tidegate backfill` does."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset

from tidegate.dag import document, run_params
from tidegate.dag.assets import AssetEvents
from tidegate.dag.names import POOL, SWAP
from tidegate.dag.tasks.backfill import CheckStep, CompareStep, DiscardStep, ReplayStep, SwapStep, WhyStep
from tidegate.pipeline import Pipeline
from tidegate.pipeline.graph.graph import Graph
from tidegate.records.names import backfill_dag

__all__ = ["build_backfill_dag"]

TAG = "tidegate-backfill"
_RUNS = 4
"""While one run reads, the others wait for the pool. A run that discards does not need to wait."""


def build_backfill_dag(
    pipeline_dag: DAG,
    pipeline: Pipeline,
    folder: str,
    graph: Graph,
    retries: dict[str, Any],
    *,
    outlets: list[Asset],
    asset_events: AssetEvents,
) -> DAG:
    """Return the DAG, registered with Airflow as one of the DAG file that is being parsed."""
    dag = DAG(
        dag_id=backfill_dag(pipeline_dag.dag_id),
        description=f"Recompute the results of pipeline {graph.name} while it runs, and swap them in",
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,  # it only runs when triggered, and must run then
        max_active_runs=_RUNS,
        default_args=pipeline_dag.default_args,
        access_control=pipeline_dag.access_control,
        doc_md=document.backfill_text(graph, pipeline_dag.dag_id),
        tags=[TAG, graph.name],
        params=run_params.backfill_params(),
    )
    shared: dict[str, Any] = {"dag": dag, "pipeline": pipeline, "project": folder, **retries}
    # With a lower priority than every task of a pipeline, and no more at once than the pool has slots.
    heavy: dict[str, Any] = {"pool": POOL, "priority_weight": 0, "weight_rule": "absolute", "max_active_tis_per_dag": 1}
    check = CheckStep(task_id="check", doc_md=document.CHECK, **shared)
    replay = ReplayStep(task_id="replay", doc_md=document.REPLAY, **heavy, **shared)
    compare = CompareStep(task_id="compare", doc_md=document.COMPARE, **heavy, **shared)
    swap = SwapStep(task_id=SWAP, doc_md=document.SWAP, outlets=outlets, asset_events=asset_events, **heavy, **shared)
    discard = DiscardStep(task_id="discard", doc_md=document.DISCARD, **shared)
    WhyStep(task_id="why", doc_md=document.WHY, **heavy, **shared)
    replay.set_upstream(check)
    compare.set_upstream(replay)
    swap.set_upstream(compare)
    discard.set_upstream(check)
    with dag:  # registers it with Airflow, although the DAG file assigns it to no variable
        return dag
