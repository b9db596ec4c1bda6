"""The decoded states of a worker stay within their budget."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from flowcore.keyed.manifest import StatePosition
from flowcore.keyed.state_cache import StateCache

STATE = cast("tuple[StatePosition, Any]", (StatePosition(), None))
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=40)


@given(STEPS, st.integers(0, 100))
def test_most_recent_states_that_fit_are_kept(steps: list[tuple[int, int]], budget: int) -> None:
    """Like a list of sizes in order of use, from whose beginning states leave."""
    cache = StateCache()
    order: dict[int, int] = {}

    for group, size in steps:
        found = cache.pop("q", group)
        assert (found is not None) == (group in order)
        cache.put("q", group, STATE, size_bytes=size, max_bytes=budget)
        order.pop(group, None)
        order[group] = size
        while sum(order.values()) > budget:
            del order[next(iter(order))]
        assert cache.size_bytes == sum(order.values())

    assert {group for group in range(6) if cache.pop("q", group)} == set(order)
    assert cache.size_bytes == 0


def test_states_of_all_queries_share_a_budget() -> None:
    """A state of another query is evicted for a newer one."""
    cache = StateCache()
    cache.put("a", 0, STATE, size_bytes=60, max_bytes=100)
    cache.put("b", 0, STATE, size_bytes=60, max_bytes=100)

    assert cache.pop("a", 0) is None
    assert cache.pop("b", 0) is not None


def test_states_are_kept_without_a_budget() -> None:
    """None stands for no budget."""
    cache = StateCache()
    for group in range(100):
        cache.put("q", group, STATE, size_bytes=1 << 40, max_bytes=None)

    assert all(cache.pop("q", group) for group in range(100))
