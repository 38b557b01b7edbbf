"""What OpenLineage's provider for Airflow sends about a pipeline's tasks: datasets as the ledger records them."""
