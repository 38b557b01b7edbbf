"""A pipeline as an Airflow DAG whose runs are checkpoints.

    from jobs.orders import pipeline
    from tidegate.dag import build_dag

    dag = build_dag(pipeline)

Airflow says when; what counts is decided in the ledger. So whatever Airflow does to a task (retry, clear, double,
kill, forget) is safe: each task asks the ledger first, and does only what is not done.
"""

from tidegate.dag.assets import asset
from tidegate.dag.build import build_dag

__all__ = ["asset", "build_dag"]
