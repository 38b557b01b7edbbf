"""The example pipeline of jobs/orders.py as a DAG: every run is one checkpoint."""

from jobs.orders import pipeline
from tidegate.dag import build_dag

dag = build_dag(pipeline)
