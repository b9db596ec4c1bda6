"""One trial: a scenario with one seed, on topics and a state folder of its own.

A scenario's function gets the trial, sends sales, starts drivers, injects its fault, and leaves the flow
complete. The trial keeps what was sent: `tests.benchmarks._faults.verify` derives the output from it.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import Producer

from flowcore.api.connectors import Delivery
from flowcore.delivery import LedgerEntry
from flowcore.errors import FlowcoreError, RunError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics
from flowcore.planner import plan_flow
from flowcore.planner.plan import Plan
from flowcore.settings import Settings
from flowcore.spark.context import Context
from flowcore.spark.run.live_stage import LiveRun
from flowcore.spark.run.live_topics import prepare_topics
from tests.benchmarks._faults.driver import Driver
from tests.benchmarks._faults.sales import PARTITIONS, STEP_MS, Sale, Sales, encode_sale, make_sale
from tests.benchmarks._faults.sent import Sent, digest_of
from tests.kafka.committed_reader import CommittedReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CLOSING", "Site", "Trial"]

_FLUSH_S = 60.0
_WAIT_S = 360.0
CLOSING = 1_000_000
"""Ids from here on are of sales that only close windows."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where trials run: a broker, a warm session for runs without faults, and a folder.

    Attributes:
        soak_s: Duration of a soak.
    """

    servers: str
    spark: SparkSession
    folder: Path
    broker: EmbeddedBroker | None = None
    soak_s: float = 7_200.0


class Trial:
    """A scenario with one seed; a context manager that ends its drivers and its reader.

    Attributes:
        random: The source of all choices of the scenario.
        problems: What the scenario itself found wrong.
        notes: The choices of the seed, for the report.
        batch_records: Records of a batch of drivers that are started.
        recovery_s: The longest time from the end of a fault to the complete output.
        lost_ledger: The entries, with their slots, of a ledger that the scenario has deleted.
    """

    def __init__(self, site: Site, name: str, seed: int, delivery: Delivery) -> None:
        self.site = site
        self.seed = seed
        self.random = Random(f"{name}/{seed}")  # noqa: S311 - reproducible, not secret
        self.folder = site.folder / f"{name}-{seed}-{secrets.token_hex(3)}"
        self.folder.mkdir(parents=True)
        self.sales = Sales(flow=f"{name}-{secrets.token_hex(4)}", delivery=delivery)
        self.sent = Sent()
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.recovery_s = 0.0
        self.lost_ledger: list[tuple[int, LedgerEntry]] = []
        self.batch_records = 150
        self.key_groups = 4
        self.reader: CommittedReader | None = None
        self._closing = ExitStack()
        self._next = self._closings = self._drivers = self._seen = 0
        self._copied: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.folder / "state"

    @property
    def checkpoint(self) -> Path:
        """The folder of the query's checkpoint."""
        query = "sales" if self.sales.realtime else "sales-batches"
        return self.state / self.sales.flow / "checkpoints" / query

    def create_topics(self, partitions: int = PARTITIONS) -> None:
        """Create source and outputs, and begin to read the copies; later calls do nothing."""
        if self.reader is not None:
            return
        outputs = dict.fromkeys(self.sales.outputs.values(), PARTITIONS)
        ensure_topics(self.site.servers, {self.sales.source: partitions, **outputs})
        self.reader = self._closing.enter_context(
            CommittedReader(self.site.servers, self.sales.outputs["copies"])
        )

    def next_sales(self, count: int, **kinds: Any) -> list[Sale]:
        """The sales of the next numbers; ``kinds`` are arguments of `make_sale`."""
        self._next += count
        return [make_sale(number, **kinds) for number in range(self._next - count, self._next)]

    def send(self, count: int, **kinds: Any) -> None:
        """Send sales of the next numbers."""
        self.send_sales(self.next_sales(count, **kinds))

    def send_sales(
        self,
        sales: Iterable[Sale],
        partitions: int = PARTITIONS,
        encode: Callable[[Sale], bytes] = encode_sale,
    ) -> None:
        """Send sales to the partition of their shop; what the broker acknowledges must be in the output."""
        self.create_topics()
        producer = self.producer()
        for sale in sales:
            partition = int(sale["shop"][1:]) % partitions
            producer.produce(
                self.sales.source, encode(sale), partition=partition,
                on_delivery=partial(self._note, sale, partition),
            )  # fmt: skip
            producer.poll(0)
        if left := producer.flush(_FLUSH_S):
            msg = f"{left} sales were not sent within {_FLUSH_S:g} s: check the broker"
            raise RunError(msg)

    def send_bad(self, messages: Iterable[bytes | None]) -> None:
        """Send messages that must be dead letters, round robin over the partitions."""
        self.create_topics()
        producer = self.producer()
        for number, message in enumerate(messages):
            producer.produce(self.sales.source, message, partition=number % PARTITIONS)
            self.sent.bad[digest_of(message)] += 1
            producer.poll(0)
        producer.flush(_FLUSH_S)

    def close_windows(self, partitions: int = PARTITIONS) -> None:
        """Send a late sale to each partition, so that all windows before it are complete."""
        at = self._next * STEP_MS + 2 * self.sales.window_s * 1000
        numbers = (CLOSING + self._closings * 6 + each for each in range(partitions))
        self._closings += 1
        self.send_sales([make_sale(number, at=at) for number in numbers], partitions)
        self._next = max(self._next, at // STEP_MS + self.sales.window_s * 10)

    def producer(self, **settings: Any) -> Producer:
        """A producer for the source."""
        return Producer(
            {"bootstrap.servers": self.site.servers, "linger.ms": 5, "message.max.bytes": 2 << 20,
             "enable.idempotence": True, "log_level": 0, **settings}
        )  # fmt: skip

    def start(self, failpoint: str | None = None, **settings: object) -> Driver:
        """Start a driver in a process of its own, in small batches."""
        self._drivers += 1
        if failpoint is not None:
            self.notes.append(failpoint)
        values = {**self._settings(self.batch_records), **settings}
        driver = Driver(self.sales, values, self.folder / f"driver-{self._drivers}.log", failpoint)
        return self._closing.enter_context(driver)

    def finish(self, **settings_besides: object) -> None:
        """Run the flow in the warm session until it has read everything.

        Raises:
            FlowcoreError: The flow cannot continue.
        """
        plan, settings = self.plan(**settings_besides)
        with self.recovery():
            prepare_topics(plan, settings)
            with LiveRun(plan, Context(self.site.spark, settings, plan.flow)) as run:
                if not run.wait(_WAIT_S):
                    msg = f"the run has not caught up within {_WAIT_S:g} s"
                    raise RunError(msg)

    def expect_refusal(self, kind: type[FlowcoreError], text: str) -> str:
        """Start the flow, which must be refused with an error of this type and text; return the message."""
        try:
            self.finish()
        except kind as error:
            self.notes.append(type(error).__name__)
            if text not in str(error):
                self.problems.append(f"the error does not say {text!r}: {error}")
            return str(error)
        self.problems.append(f"the start was not refused with {kind.__name__}")
        return ""

    def on_close(self, call: Callable[[], object]) -> None:
        """Call a function at the end of the trial, after its drivers have ended."""
        self._closing.callback(call)

    def plan(self, **settings_besides: object) -> tuple[Plan, Settings]:
        """Plan and settings of a run without faults."""
        settings = Settings.of({**self._settings(50_000), **settings_besides}, environment={})
        return plan_flow(self.sales.declare(), "slice", settings), settings

    @contextmanager
    def recovery(self) -> Iterator[None]:
        """Measure the block as a recovery."""
        began = time.monotonic()
        yield
        self.recovery_s = max(self.recovery_s, time.monotonic() - began)

    def copied(self) -> set[int]:
        """Ids of the copies that a concurrent reader of committed records has seen."""
        new = self.reader.found[self._seen :] if self.reader else []
        self._seen += len(new)
        self._copied |= {json.loads(message.value() or b"null")["id"] for message in new}
        return self._copied

    def wait_copies(self, count: int | None = None, driver: Driver | None = None) -> None:
        """Wait until so many sales were copied, by default all; or until the driver has ended.

        Workers that fail-points stop meanwhile are continued.

        Raises:
            RunError: They were not in time.
        """
        wanted = len({sale["id"] for _, sale in self.sent.sales}) if count is None else count
        end = time.monotonic() + _WAIT_S
        while len(self.copied()) < wanted and not (driver is not None and driver.ended):
            if time.monotonic() > end:
                msg = f"{len(self.copied())} of {wanted} sales were copied within {_WAIT_S:g} s"
                raise RunError(msg)
            if driver is not None:
                driver.resume_workers()
            time.sleep(0.1)

    def recover(self, driver: Driver) -> None:
        """Wait until a driver has recovered by itself, or has ended and a new run completes the flow."""
        with self.recovery():
            self.wait_copies(driver=driver)
            ended = driver.ended
            self.notes.append(f"driver ended: {driver.error[:90]}" if ended else "driver went on")
            driver.kill()
            if ended:  # the recovery is not complete before the end of the next run
                self.finish()
        if not ended:
            self.finish()

    def _settings(self, batch_records: int) -> dict[str, object]:
        return {
            "kafka.bootstrap.servers": self.site.servers,
            "state.dir": self.state,
            "state.key-groups": self.key_groups,
            "execution.short-lived": "true",
            "execution.max-records-per-batch": batch_records,
        }

    def _note(self, sale: Sale, partition: int, error: object, _message: object) -> None:
        if error is None:
            self.sent.sales.append((partition, sale))
        else:
            self.sent.refused.add(sale["id"])
