"""Which offsets have no bad record, against every offset that was read, and after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from flowcore import Flow, KafkaTopic
from flowcore.api.operators import Read
from flowcore.planner import plan_flow
from flowcore.spark.run.counted_bad_records import CleanRange, CountedBadRecords

SIZES = st.tuples(st.integers(0, 3), st.integers(0, 3))


@given(
    st.integers(0, 5),
    st.lists(st.tuples(SIZES, st.booleans(), st.booleans()), max_size=8),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
)
def test_range_is_clean_only_if_every_record_in_it_was_counted_and_good(
    first: int,
    batches: list[tuple[tuple[int, int], bool, bool]],
    begin: tuple[int, int],
    end: tuple[int, int],
) -> None:
    """Batches may have bad records, and some are not reported. The second partition may be a new one."""
    clean, at, good = CleanRange(), {0: first}, set[tuple[int, int]]()
    seen: dict[int, int] = {}
    for sizes, has_bad, is_reported in batches:
        to = {partition: at.get(partition, 0) + size for partition, size in enumerate(sizes)}
        if is_reported:
            clean.add(at, to, bad=int(has_bad))
            seen = to
        if is_reported and not has_bad:
            good |= {(p, offset) for p in to for offset in range(at.get(p, 0), to[p])}
        at = to
    wanted = {(p, offset) for p in (0, 1) for offset in range(begin[p], end[p])}

    found = clean.judge(dict(enumerate(begin)), dict(enumerate(end)))

    if found is None:
        assert any(end[p] > seen.get(p, -1) for p, _ in wanted)
    elif found:
        assert wanted <= good


def test_range_of_good_batches_is_clean_until_one_is_bad() -> None:
    """A batch with a bad record, and all before it, are read; later ones are not."""
    clean = CleanRange()
    clean.add({0: 0}, {0: 10}, bad=0)
    clean.add({0: 10}, {0: 20, 1: 5}, bad=0)
    assert clean.judge({0: 3}, {0: 20, 1: 5}) is True
    assert clean.judge({0: 3}, {0: 21}) is None

    clean.add({0: 20, 1: 5}, {0: 30, 1: 5}, bad=1)
    clean.add({0: 30, 1: 5}, {0: 40, 1: 9}, bad=0)

    assert clean.judge({0: 20}, {0: 30}) is False
    assert clean.judge({0: 30, 1: 5}, {0: 40, 1: 9}) is True
    assert clean.judge({0: 29, 1: 5}, {0: 40, 1: 9}) is False


class Counting:
    """A query that counts bad records; each of its starts reports only its own batches."""

    mode, active = "micro-batch", True

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.ends = [0]
        for folder in ("offsets", "commits", "sources/0"):
            (checkpoint / folder).mkdir(parents=True)
        (checkpoint / "sources" / "0" / "0").write_text('v1\n{"bids":{"0":0}}')
        self.running: Any = None
        self.start()

    def start(self) -> None:
        self.reports: list[Any] = []
        self.running = SimpleNamespace(_jsq=SimpleNamespace(recentProgress=lambda: self.reports))

    def commit(self, end: int) -> None:
        """Commit a batch of good records, and report it."""
        number, begin = len(self.ends) - 1, self.ends[-1]
        (self.checkpoint / "offsets" / str(number)).write_text(f'v1\n{{}}\n{{"bids":{{"0":{end}}}}}')
        (self.checkpoint / "commits" / str(number)).touch()
        source = {"startOffset": {"bids": {"0": begin}}, "endOffset": {"bids": {"0": end}}}
        observed = {"bad:bids": {"bad": 0}}
        report = {
            "batchId": number, "durationMs": {"addBatch": 1}, "sources": [source], "observedMetrics": observed
        }  # fmt: skip
        text = json.dumps(report)
        self.reports.append(SimpleNamespace(batchId=lambda: number, json=lambda: text))
        self.ends.append(end)


def test_batch_that_was_counted_before_a_restart_is_read(tmp_path: Path) -> None:
    """Nobody reports on it again, and a query that waits for a report writes no dead letters."""
    flow = Flow("f")
    flow.read("bids", KafkaTopic("bids", schema="id BIGINT")).write("out", KafkaTopic("out"))
    (source,) = plan_flow(flow).live_queries[0].sources
    assert isinstance(source, Read)
    counting = Counting(tmp_path)
    counted = CountedBadRecords(source, tmp_path, lambda: counting)
    counting.commit(10)
    assert counted.judge({0: 0}, {0: 10}) is True
    counting.commit(20)
    counting.start()

    assert counted.judge({0: 10}, {0: 20}) is False
    assert counted.judge({0: 20}, {0: 30}) is None
    counting.commit(30)
    assert counted.judge({0: 20}, {0: 30}) is True
    assert counted.judge({0: 10}, {0: 30}) is False
