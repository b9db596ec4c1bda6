"""How the state of a checkpoint is read."""

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from flowcore.spark.run.inspection import _TOGETHER_BYTES, _read_together

sizes = st.dictionaries(st.integers(0, 500), st.integers(0, 2 * _TOGETHER_BYTES), max_size=40)


@given(sizes)
def test_each_key_group_is_read_once_and_only_small_ones_together(found: dict[int, int]) -> None:
    """A large key group is read alone, and no further one would fit into a job."""
    jobs = list(_read_together(found))

    assert list(chain(*jobs)) == list(found)
    assert all(len(job) == 1 or sum(map(found.__getitem__, job)) <= _TOGETHER_BYTES for job in jobs)
    assert all(
        sum(map(found.__getitem__, job)) + found[after[0]] > _TOGETHER_BYTES for job, after in pairwise(jobs)
    )
