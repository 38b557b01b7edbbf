"""Avro with a schema registry: records as Confluent's serializers write them."""
