"""Asset events that no task of Airflow's sends."""
