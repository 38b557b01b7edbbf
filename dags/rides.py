"""The pipeline of jobs/rides.py as a DAG, where its connections are configured: `make run-kafka` does that."""

from pathlib import Path

from tidegate.config import load_settings

configured = {name.partition(".")[0] for name in load_settings(start=Path(__file__).parent).connections}

if configured >= {"events", "reports"}:
    from jobs.rides import pipeline
    from tidegate.dag import build_dag

    dag = build_dag(pipeline)
