"""Topics of Kafka: planned without a JVM, read by Spark."""
