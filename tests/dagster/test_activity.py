"""The flow `activity` as deployed: on the broker in a container, launched from the UI, with all its features.

The tests are about one run. Bids of 40 seconds are sent before it starts; then bids that complete the
windows; then late bids; then many bids of one bidder.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer
from dagster_ui import PROJECT, Ui, serve

from flowcore.elements import LatencyMarkerEvent
from flowcore.kafka.topics import ensure_topics
from flowcore.serializers import LatencyMarkerEventSerializer
from pipelines.auctions.readers import read_messages
from pipelines.auctions.verify_activity import compare_activity, compare_bidders
from pipelines.nexmark.feed import feed
from pipelines.nexmark.generator import NexmarkConfig, live_bids
from tests.waiting import wait_until

pytestmark = [pytest.mark.dagster, pytest.mark.thorough]

PARTITIONS = 2
CONFIG = NexmarkConfig(inter_event_delay_us=20_000)
BIDS, HISTORY = 2_000, 20_000
LATE_BIDS = 20
LONGEST_S = 900.0
BIDDER, BIDDER_BIDS, BIDDER_S = 7, 40, 8.0
DEPLOYED = PROJECT / "deploy" / "settings.toml"
SINKS = "auction-activity", "late-bids", "bidder-totals"


@pytest.fixture(scope="module")
def ui(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """Webserver and daemon with the settings of the deployment."""
    home, state = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("state")
    settings = {
        "kafka.bootstrap.servers": kafka,
        "state.dir": str(state),
        "execution.short-lived": "true",
        "settings": str(DEPLOYED),  # FLOWCORE_SETTINGS, the file
    }
    with serve(home, state, settings) as served:
        yield served


@dataclass(frozen=True, slots=True)
class Session:
    """What was sent, what the topics held at the end, and the last beat of the run.

    Attributes:
        many_s: Seconds in which the many bids of one bidder were sent.
    """

    sent: pa.Table
    many_s: float
    topics: dict[str, list[Message]]
    markers: dict[str, list[LatencyMarkerEvent]]
    beat: dict[str, Any]

    def values(self, topic: str) -> list[bytes]:
        """The values of a topic, in which a restarted run may repeat records under their ids."""
        found: dict[Any, bytes] = {}
        for number, message in enumerate(self.topics[topic]):
            found[dict(message.headers() or ()).get("flowcore-id", number)] = message.value() or b""
        return list(found.values())


@pytest.fixture(scope="module")
def session(ui: Ui, kafka: str) -> Session:
    """The live run is launched with a click, sees all bids, and is terminated."""
    ensure_topics(kafka, dict.fromkeys(("bids", *SINKS), PARTITIONS))
    bids = live_bids(CONFIG, HISTORY, 0, BIDS)
    feed(kafka, "bids", [bids])
    newest_ms = max(bids["bid_time_ms"].to_pylist())
    ending = [_bid(-1, newest_ms + 60_000)] * PARTITIONS
    late = [_bid(-2, newest_ms - 30_000 - number) for number in range(LATE_BIDS)]
    many = [_bid(BIDDER, newest_ms + 60_000, price=float(number)) for number in range(BIDDER_BIDS)]

    ui.launch(
        "activity_live", {"ops": {"activity__live": {"config": {"mode": "auto", "heartbeat_seconds": 2}}}}
    )
    _wait(lambda: len(_read(kafka, "auction-activity")) > 0, "the first windows are complete")
    _send(kafka, ending)
    _send(kafka, late)
    _wait(lambda: len(_read(kafka, "late-bids")) >= LATE_BIDS, "the late bids have left")
    began = time.monotonic()
    _send(kafka, many, seconds=BIDDER_S)
    many_s = time.monotonic() - began
    sent = pa.concat_tables([bids, pa.Table.from_pylist([*ending, *late, *many], schema=bids.schema)])
    _wait(lambda: _totals(kafka).get(BIDDER) == BIDDER_BIDS, "the last totals have left")
    _wait(lambda: len(_tracked(_beat(ui))) == len(SINKS), "a marker reached each sink")
    beat = _beat(ui)
    run = _run(ui)
    ui.terminate(run)
    ui.wait_for(run, "CANCELED")
    decode = LatencyMarkerEventSerializer().decode
    markers = {
        topic: [decode(message.value() or b"") for message in _read(kafka, f"{topic}.events")]
        for topic in SINKS
    }
    return Session(sent, many_s, {topic: _read(kafka, topic) for topic in SINKS}, markers, beat)


def _wait(condition: Callable[[], bool], what: str) -> None:
    """Wait long: three queries start beside the servers."""
    wait_until(condition, what, LONGEST_S)


def _bid(bidder: int, at_ms: int, price: float = 1.0) -> dict[str, Any]:
    return {"bid_id": -1, "auction_id": -1, "bidder": bidder, "price": price, "bid_time_ms": at_ms}


def _send(servers: str, bids: list[dict[str, Any]], seconds: float = 0.0) -> None:
    """Send bids evenly over some seconds, to each partition in turn."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for number, bid in enumerate(bids):
        producer.produce("bids", json.dumps({**bid, "sent_us": 0}), partition=number % PARTITIONS)
        producer.poll(0)
        time.sleep(seconds / len(bids))
    assert producer.flush(30) == 0


def _read(servers: str, topic: str) -> list[Message]:
    return [message for messages in read_messages(servers, topic) for message in messages]


def _totals(servers: str) -> dict[int, int]:
    rows = [json.loads(message.value() or b"") for message in _read(servers, "bidder-totals")]
    return {row["bidder"]: row["bids"] for row in rows}


def _run(ui: Ui) -> str:
    """The latest live run: the supervisor replaces one whose Spark did not start in time."""
    return str(ui.runs("activity_live")[0]["id"])


def _beat(ui: Ui) -> dict[str, Any]:
    beats = ui.materializations("activity", "live", run=_run(ui))
    return beats[0] if beats else {}


def _tracked(beat: dict[str, Any]) -> set[str]:
    """The sinks that the figures of a heartbeat name with markers."""
    return {
        key.removesuffix("/markers").rpartition("/")[2]
        for key, value in beat.items()
        if key.startswith("latency/activity/") and key.endswith("/markers") and value
    }


def test_windows_and_late_bids_are_duckdbs(session: Session) -> None:
    """Each bid is in its window or among the late ones, and the bids behind all windows are late."""
    found = compare_activity(session.sent, session.values("auction-activity"), session.values("late-bids"))
    late = [json.loads(value) for value in session.values("late-bids")]

    assert found.exact
    assert found.rows_in > 100
    assert len([bid for bid in late if bid["bidder"] == -2]) == LATE_BIDS


def test_totals_leave_once_in_an_interval(session: Session) -> None:
    """They are right, and the many bids of one bidder make few records."""
    updates = [json.loads(value) for value in session.values("bidder-totals")]

    assert compare_bidders(session.sent, session.values("bidder-totals")).exact
    assert sum(row["bidder"] == BIDDER for row in updates) <= session.many_s / 5 + 2 < BIDDER_BIDS / 2


def test_value_only_topic_has_values_and_nothing_else(session: Session) -> None:
    """Each message is the JSON of its row, byte for byte, without an element in its headers."""
    for message in session.topics["bidder-totals"]:
        row = json.loads(message.value() or b"")
        assert message.value() == json.dumps(row, separators=(",", ":")).encode()
        assert list(row) == ["bidder", "bids", "highest"]
        assert "flowcore-element" not in dict(message.headers() or ())


def test_markers_reach_every_sink(session: Session) -> None:
    """The latency of each sink is in the heartbeats that the UI plots."""
    assert _tracked(session.beat) == {"auction_activity", "late_bids", "bidder_totals"}
    for topic in SINKS:
        assert {marker.operator_id.partition("/")[0] for marker in session.markers[topic]} == {"activity"}
