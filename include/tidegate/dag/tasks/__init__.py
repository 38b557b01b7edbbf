"""The tasks of a DAG: trigger, job, gate and complete, and how Airflow sees their results."""
