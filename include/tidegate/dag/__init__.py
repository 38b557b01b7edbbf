"""A pipeline as an Airflow DAG whose runs are checkpoints.

    from jobs.orders import pipeline
    from tidegate.dag import build_dag

    dag = build_dag(pipeline)

Airflow decides when; the ledger decides what counts. So anything that Airflow does to a task (retry, clear, double,
kill, forget) is safe: each task reads the ledger first, and does only what is not done yet.
"""

from tidegate.dag.assets import asset
from tidegate.dag.build import build_dag

__all__ = ["asset", "build_dag"]
