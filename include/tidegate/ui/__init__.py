"""Look and steer: pages and a JSON API inside Airflow's web server. Runs no user code; the ledger tells it all."""
