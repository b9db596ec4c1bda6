"""Flush buffers that are larger than the memory of a worker are in the state store."""

from __future__ import annotations

from flowcore.flush import BufferOutput
from flowcore.flush.operator import FlushBuffers
from flowcore.keyed.runtime import Runtime
from flowcore.keyed.state_cache import StateCache
from flowcore.testing.memory_store import MemoryStore
from tests.unit.keyed.test_runtime import ROWS, rows

BUDGET, GROUPS, STEPS, RECORDS = 100_000, 4, 6, 2_000


def test_buffers_beyond_the_budget_are_in_the_store_until_they_are_flushed() -> None:
    """Of four buffers of 300 kB a worker keeps none between steps, and their flush loses no record."""
    config = BufferOutput(1_000)
    operator = FlushBuffers(config=config, quiet_ms=1_000, keys=("user",), timestamp="t", rows=ROWS)
    runtime = Runtime(
        operator=operator, query="q", key_groups=GROUPS, sources={}, rows=ROWS, max_cache_bytes=BUDGET
    )
    cache, stores = StateCache(), [MemoryStore() for _ in range(GROUPS)]
    kept, stored = [], []

    for step in range(STEPS):
        for group, store in enumerate(stores):
            batch = [(f"{group}/{step}/{number}", step, number) for number in range(RECORDS)]
            result = runtime.step(group, rows(*batch), step, store, cache)
            assert not result.outputs.batches
            kept.append(cache.size_bytes)
        stored.append(sum(len(content) for store in stores for content in store.segments.values()))
    flushed = [runtime.step(group, [], 1_000, store, cache) for group, store in enumerate(stores)]

    assert max(kept) <= BUDGET < stored[-1] / GROUPS
    assert stored == sorted(stored)
    for group, result in enumerate(flushed):
        found = {row["user"] for _, each in result.outputs.batches for row in each.to_pylist()}
        assert len(found) == STEPS * RECORDS
        assert all(user.startswith(f"{group}/") for user in found)
