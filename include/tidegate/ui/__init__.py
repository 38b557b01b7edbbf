"""Pages and a JSON API inside Airflow's web server. They read the ledger and its tables, and run no user code."""
