"""What is asked of windows, of which records, and which answers are right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from flowcore import Session, Sliding, Tumbling
from flowcore.errors import RunError
from flowcore.kafka.topics import end_offsets

__all__ = [
    "BEGIN_MS",
    "CASES",
    "DELAY_MS",
    "PARTITIONS",
    "SCHEMA",
    "Case",
    "Sent",
    "check",
    "read",
    "records_of",
]

PARTITIONS = 2
BEGIN_MS = 1_700_000_000_000
DELAY_MS, SPAN_MS = 2000, 100_000
SCHEMA = "auction_id BIGINT, price BIGINT, at BIGINT"


@dataclass(frozen=True)
class Case:
    """One workload: windows over records of so many keys."""

    windows: str
    keys: int
    late: bool = False

    @property
    def name(self) -> str:
        """As it is asked for and shown."""
        return f"{self.windows}-{self.keys}{'-late' if self.late else ''}"

    @property
    def declared(self) -> Tumbling | Sliding | Session:
        """In flowcore's words."""
        return {"tumbling": Tumbling(10), "sliding": Sliding(10, slide=1), "session": Session(5)}[
            self.windows
        ]


CASES = [
    Case(windows, keys, late)
    for late in (False, True)
    for windows in ("tumbling", "sliding", "session")
    for keys in (10_000, 1_000_000)
]


@dataclass(frozen=True)
class Sent:
    """A topic that has been filled, and what is in it."""

    topic: str
    columns: pa.Table


def records_of(case: Case, records: int) -> pa.Table:
    """The records of a case, in order of arrival."""
    random = np.random.default_rng(7)
    late_ms = np.where(random.random(records) < 0.05, random.integers(0, 20_000, records), 0)
    at = BEGIN_MS + np.arange(records) * SPAN_MS // records - random.integers(0, DELAY_MS, records)
    return pa.table(
        {
            "auction_id": random.integers(0, case.keys, records),
            "price": random.integers(1, 1000, records),
            "at": at - late_ms if case.late else at,
        }
    )


def check(case: Case, sent: Sent, rows: pd.DataFrame, who: str) -> None:
    """Every window that is complete is there, with the right sum and count; others may be."""
    records = sent.columns.to_pandas()
    if case.windows == "session":
        expected = _sessions(records)
    else:
        slide = 10_000 if case.windows == "tumbling" else 1000
        parts = []
        for back in range(0, 10_000, slide):
            start = records["at"] // slide * slide - back
            parts.append(
                pd.DataFrame({"key": records["auction_id"], "start": start, "price": records["price"]})
            )
        groups = pd.concat(parts).groupby(["key", "start"])["price"]
        expected = pd.DataFrame({"total": groups.sum(), "n": groups.count()}).reset_index()
        expected["end"] = expected["start"] + 10_000
    last_ms = (
        min(records["at"][partition::PARTITIONS].max() for partition in range(PARTITIONS)) - DELAY_MS - 5000
    )
    expected = expected[expected["end"] < last_ms]
    rows = rows.rename(columns={"auction_id": "key"})
    for name in ("start", "end"):
        rows[name] = pd.to_datetime(rows[f"window_{name}"]).astype("int64") // (
            1_000_000
            if str(pd.to_datetime(rows[f"window_{name}"]).dtype).startswith("datetime64[ns")
            else 1000
        )
    if "firing" in rows:
        rows = rows.sort_values("firing").drop_duplicates(["key", "start", "end"], keep="last")
    both = expected.merge(rows, on=["key", "start", "end"], how="left", suffixes=("", "_found"))
    wrong = both[(both["total"] != both["total_found"]) | (both["n"] != both["n_found"])]
    if len(wrong) or not len(expected):
        msg = f"{case.name}: {len(wrong)} of {len(expected)} windows of {who} are wrong:\n{wrong.head()}"
        raise RunError(msg)


def _sessions(records: pd.DataFrame) -> pd.DataFrame:
    ordered = records.sort_values(["auction_id", "at"])
    new = (ordered["auction_id"].diff() != 0) | (ordered["at"].diff() > 5000)
    groups = ordered.groupby(new.cumsum())
    return pd.DataFrame(
        {
            "key": groups["auction_id"].first(),
            "start": groups["at"].min(),
            "end": groups["at"].max() + 5000,
            "total": groups["price"].sum(),
            "n": groups["price"].count(),
        }
    )


def read(servers: str, topic: str) -> list[Mapping[str, Any]]:
    """The values of a topic."""
    end = end_offsets(servers, topic)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in end])
    left, found = sum(end.values()), []
    while len(found) < left:
        found += [
            json.loads(message.value())
            for message in consumer.consume(50_000, timeout=10.0)
            if not message.error()
        ]
    consumer.close()
    return found
