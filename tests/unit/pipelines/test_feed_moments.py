"""A paced feed sends its bids at random moments of the given rate."""

from itertools import islice, pairwise

import numpy as np

from pipelines.nexmark.feed import _moments_s


def test_bids_are_evenly_spaced() -> None:
    assert list(islice(_moments_s(4.0, at_random=False), 5)) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_bids_at_random_moments_are_a_poisson_process() -> None:
    """Gaps are exponential with the mean of the rate, and independent of each other."""
    moments = list(islice(_moments_s(1_000.0, at_random=True), 100_001))
    gaps_ms = np.array([(after - before) * 1_000 for before, after in pairwise(moments)])

    assert moments[0] == 0.0
    assert abs(gaps_ms.mean() - 1.0) < 0.02
    assert abs(gaps_ms.std() - 1.0) < 0.02
    assert abs(np.median(gaps_ms) - np.log(2)) < 0.02
    assert abs(np.corrcoef(gaps_ms[:-1], gaps_ms[1:])[0, 1]) < 0.02
