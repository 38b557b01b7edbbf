"""The Kafka source and sink, and what they share: logins, clients and errors."""

from tidegate.connectors.kafka.cluster import ANSWER_S, Cluster
from tidegate.connectors.kafka.login import SERVERS, KafkaLogin

__all__ = ["ANSWER_S", "SERVERS", "Cluster", "KafkaLogin"]
