"""How a gate judges rows: in Spark, or in files that were staged."""
