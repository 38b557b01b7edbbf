"""What the source and the sink of Kafka share: logins, clients, and what errors mean."""

from tidegate.connectors.kafka.cluster import ANSWER_S, Cluster
from tidegate.connectors.kafka.login import SERVERS, KafkaLogin

__all__ = ["ANSWER_S", "SERVERS", "Cluster", "KafkaLogin"]
