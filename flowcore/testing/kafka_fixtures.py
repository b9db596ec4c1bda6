"""Pytest fixtures that share one Kafka container over a whole run.

Import them in a ``conftest.py``: ``from flowcore.testing.kafka_fixtures import kafka, kafka_broker``.
Folders that import them separately still share the container, which goes when Python ends.

Tests that stop or kill a broker should start one of their own.
"""

from __future__ import annotations

import os
from functools import cache

import pytest

from flowcore.errors import InstallationError
from flowcore.testing.kafka_container import KafkaBroker

__all__ = ["kafka", "kafka_broker", "new_kafka_broker"]


def new_kafka_broker(pem: bytes | None = None) -> KafkaBroker:
    """Return a Kafka container that is not started yet.

    Where there can be none the test fails if CI is set in the environment; elsewhere it is skipped
    with the reason.

    Args:
        pem: The broker's key and certificate, see `KafkaBroker`.
    """
    try:
        return KafkaBroker(pem=pem)
    except InstallationError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@cache
def _shared() -> KafkaBroker:
    return new_kafka_broker().start()


@pytest.fixture(scope="session")
def kafka_broker() -> KafkaBroker:
    """The container that all tests of the run share: never stop it."""
    return _shared()


@pytest.fixture(scope="session")
def kafka(kafka_broker: KafkaBroker) -> str:
    """The bootstrap servers of a real Kafka broker in a container."""
    return kafka_broker.bootstrap_servers
