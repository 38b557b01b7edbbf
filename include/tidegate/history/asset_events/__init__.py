"""What other DAGs are told of a pipeline's tables, and by whom."""
