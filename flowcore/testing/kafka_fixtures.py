"""Pytest fixtures that share one Kafka container in a whole test run.

Import them in a ``conftest.py``: ``from flowcore.testing.kafka_fixtures import kafka, kafka_broker``.
Folders that import them separately share the container too. It is removed when Python ends.

A test that stops or kills a broker should start its own.
"""

import os
from functools import cache

import pytest

from flowcore.errors import InstallationError
from flowcore.testing.kafka_container import KafkaBroker

__all__ = ["kafka", "kafka_broker", "new_kafka_broker"]


def new_kafka_broker(pem: bytes | None = None) -> KafkaBroker:
    """Return a Kafka container that is not started yet.

    Without a container engine, the test fails if ``CI`` is set in the environment; otherwise it is skipped.
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
    """The container that all tests of the run share; a test must not stop it."""
    return _shared()


@pytest.fixture(scope="session")
def kafka(kafka_broker: KafkaBroker) -> str:
    """The bootstrap servers of the shared container."""
    return kafka_broker.bootstrap_servers
