"""The decoded states of a worker stay within their budget."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from flowcore.keyed.manifest import StatePosition
from flowcore.keyed.state_cache import StateCache

STATE = cast("tuple[StatePosition, Any]", (StatePosition(), None))
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=40)


def _use(cache: StateCache, group: int, size_bytes: int, budget: int, query: str = "q") -> bool:
    """Whether the state was there."""
    found = cache.pop(query, group)
    cache.put(query, group, STATE, size_bytes=size_bytes, max_bytes=budget)
    return found is not None


@given(STEPS, st.integers(0, 100))
def test_states_stay_within_their_budget(steps: list[tuple[int, int]], budget: int) -> None:
    """This holds for any order of use; the sizes are those of the kept states."""
    cache = StateCache()
    sizes = {}
    for group, size in steps:
        _use(cache, group, size, budget)
        sizes[group] = size
        assert cache.size_bytes <= budget

    held_bytes = cache.size_bytes
    assert sum(size for group, size in sizes.items() if cache.pop("q", group)) == held_bytes
    assert cache.size_bytes == 0


@given(st.integers(1, 12), st.integers(0, 12))
def test_as_many_states_as_fit_stay_through_rounds(groups: int, fitting: int) -> None:
    """Each round uses all of them, in the same order."""
    cache = StateCache()
    rounds = [[_use(cache, group, 10, 10 * fitting) for group in range(groups)] for _ in range(4)]

    assert [sum(found) for found in rounds] == [0, *[min(groups, fitting)] * 3]


def test_state_that_is_used_no_more_leaves_for_others() -> None:
    """A key group that another worker runs now, and a query that has ended."""
    cache = StateCache()
    assert not _use(cache, 0, 60, 100, query="a")

    assert [_use(cache, 0, 60, 100, query="b") for _ in range(3)] == [False, False, True]
    assert cache.pop("a", 0) is None


def test_states_are_kept_without_a_budget() -> None:
    """A budget of None is no budget."""
    cache = StateCache()
    for group in range(100):
        cache.put("q", group, STATE, size_bytes=1 << 40, max_bytes=None)

    assert all(cache.pop("q", group) for group in range(100))
