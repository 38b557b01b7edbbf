"""`tidegate up`: a local Airflow, started and supervised."""
