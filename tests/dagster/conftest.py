"""What every test here starts from: a small history, and a broker with live bids in it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.testing.kafka_fixtures import kafka, kafka_broker
from pipelines.nexmark.feed import feed
from pipelines.nexmark.generator import NexmarkConfig, live_batches
from pipelines.nexmark.history import write_history

__all__ = ["kafka", "kafka_broker"]

EVENTS = 20_000
BIDS = 2_000


@dataclass(frozen=True, slots=True)
class Auctions:
    """Where the reference flow's input is, and how much there is of it."""

    servers: str
    data: Path
    events: int
    bids: int

    def settings(self, state: Path) -> dict[str, str]:
        """The settings of a run that keeps its state in a folder of its own."""
        return {
            "kafka.bootstrap.servers": self.servers,
            "data.dir": str(self.data),
            "state.dir": str(state),
            "execution.short-lived": "true",
            "execution.realtime.batch-duration": "5 s",
        }


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small history of auctions and bids."""
    folder = tmp_path_factory.mktemp("data")
    write_history(NexmarkConfig(), EVENTS, folder / "history")
    return folder


@pytest.fixture(scope="module")
def auctions(data: Path) -> Iterator[Auctions]:
    """History, and a broker with live bids."""
    with EmbeddedBroker() as broker:
        ensure_topics(broker.bootstrap_servers, {"bids": 2})
        feed(broker.bootstrap_servers, "bids", live_batches(NexmarkConfig(), EVENTS, BIDS))
        yield Auctions(broker.bootstrap_servers, data, EVENTS, BIDS)


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("FLOWCORE_", "DAGSTER_"))]:
            patch.delenv(name)
        yield
