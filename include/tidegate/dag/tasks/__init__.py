"""What the tasks of a DAG do: trigger, job, complete; and what Airflow is told of how they end."""
