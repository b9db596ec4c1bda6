"""Tests of this folder talk to one Kafka broker in a container."""

from flowcore.testing.kafka_fixtures import kafka, kafka_broker

__all__ = ["kafka", "kafka_broker"]
