"""`tidegate up`: an Airflow of its own, started and supervised."""
