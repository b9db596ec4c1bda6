"""All benchmarks, with the options of each at three sizes.

*Full* is what figures are quoted from: three rounds, over records enough to tell the start from the rate,
some hours in all; a benchmark by itself has larger defaults. *Quick* shows in a quarter of an hour whether a
change moved something: of most benchmarks by one round, over too few records to tell the start from the rate,
and without the further cases of a benchmark. *Smallest* shows only that a benchmark runs and that its answers
are right: its figures mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SUITE", "Entry", "Size"]

Size = Literal["full", "quick", "smallest"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of a benchmark.

    Attributes:
        name: Names its result.
        benchmark: The command below `flowcore bench`.
        quick: None for a further case of a benchmark, which is left out.
        always: Options of all sizes.
        full: Options of the full size; empty for the benchmark's own.
    """

    name: str
    benchmark: str
    quick: str | None
    smallest: str
    always: str = ""
    full: str = ""

    def is_in(self, size: str) -> bool:
        """Whether it runs at a size."""
        return size != "quick" or self.quick is not None

    def options(self, size: Size) -> list[str]:
        """The options of a size that it is in."""
        chosen = {"full": self.full, "quick": self.quick or "", "smallest": self.smallest}[size]
        return [*self.always.split(), *chosen.split()]


SUITE = (
    Entry(
        "join",
        "join",
        quick="--bids 100000 --history-events 5000 --rounds 1",
        smallest="--bids 5000 --history-events 5000 --rounds 1",
        full="--bids 500000 --history-events 100000",
    ),
    Entry(
        "delivery",
        "join",
        always="--delivery",
        quick=None,
        smallest="--bids 25000 --history-events 5000 --rounds 1",
        full="--bids 500000 --history-events 100000",
    ),
    Entry(
        "catch-up",
        "catch-up",
        quick="--bids 50000 --history-events 5000 --rounds 1",
        smallest="--bids 20000 --history-events 5000 --rounds 1",
        full="--bids 500000 --history-events 100000",
    ),
    Entry(
        "stages",
        "stages",
        quick="--records 99000 --batch-records 50000 --function-records 1000 --rounds 1",
        smallest="--records 4000 --function-records 400 --rounds 1",
        full="--records 2000000",
    ),
    Entry(
        "windows",
        "windows",
        quick="--case tumbling-10000 --records 99000 --per-key-records 2000 --rounds 1",
        smallest="--case tumbling-10000 --case session-10000-late --records 20000 --per-key-records 2000 "
        "--rounds 1",
        full="--records 1000000 --per-key-records 0",
    ),
    Entry(
        "stream-joins",
        "stream-joins",
        quick="--records 40000 --rounds 1",
        smallest="--records 5000 --rounds 1",
        full="--records 400000",
    ),
    Entry(
        "flush",
        "flush",
        quick="--records 20000 --keys 1000 --small 10000 --large 20000 --rounds 1",
        smallest="--records 20000 --keys 1000 --small 10000 --large 20000 --rounds 1",
        full="--records 1000000",
    ),
    Entry(
        "flush-keys",
        "flush",
        always="--case keys",
        quick=None,
        smallest="--keys 20000 --rounds 1",
        full="--keys 1000000",
    ),
    Entry(
        "chain",
        "chain",
        always="--spark",
        quick="--orders 10000 --rounds 3",
        smallest="--orders 1000 --rounds 1",
        full="--rounds 3",
    ),
    Entry(
        "exchanges",
        "chain",
        always="--case exchanges",
        quick=None,
        smallest="--bids 10000 --rounds 1",
        full="--bids 1000000 --rounds 3",
    ),
    Entry(
        "branches",
        "chain",
        always="--case branches",
        quick=None,
        smallest="--seconds 15 --rate 500 --rounds 1",
        full="--seconds 30 --rounds 3",
    ),
    Entry(
        "serializer",
        "serializer",
        quick="--sizes 32 --records 50000 --kafka-records 50000 --rounds 1",
        smallest="--sizes 8 --records 2000 --kafka-records 2000 --rounds 1",
        full="--records 500000 --kafka-records 500000 --rounds 3",
    ),
    Entry(
        "latency",
        "latency",
        always="--mode realtime",
        quick="--rounds 0 --minutes 1 --history-events 5000",
        smallest="--bids 5000 --rounds 1 --minutes 1 --rate 100 --history-events 5000",
        full="--rounds 3 --history-events 100000",
    ),
    Entry(
        "held-state",
        "held-state",
        quick="--keys 10000 --batches 4 --key-groups 8 --rounds 1",
        smallest="--keys 5000 --batches 4 --key-groups 8 --rounds 1",
    ),
    Entry(
        "scale",
        "scale",
        quick="--points 2 --records 5000 --batches 4 --rounds 1 --dimension keys",
        smallest="--points 1 --records 1000 --batches 3 --rounds 1 --dimension keys --dimension state-mb "
        "--dimension depth",
        full="--points 3",
    ),
    Entry("start", "start", quick="--rounds 1", smallest="--rounds 1"),
    Entry(
        "waiting", "waiting", quick="--records 5000 --pending 1000", smallest="--records 2000 --pending 500"
    ),
    Entry(
        "fuzz",
        "fuzz",
        quick="--good 10000 --bad 1000 --oversize 4",
        smallest="--good 2000 --bad 400 --oversize 2",
    ),
    Entry(
        "nexmark",
        "nexmark",
        quick="--query q5 --query q20 --events 90000 --rounds 1",
        smallest="--query q5 --events 20000 --rounds 1",
        full="--events 200000",
    ),
    Entry(
        "faults",
        "faults",
        quick="--scenario kill-between-slots",
        smallest="--scenario kill-between-slots",
        full="--quick",
    ),
    Entry(
        "endurance",
        "endurance",
        quick="--minutes 1 --bids 20000 --history-events 5000 --away 5 --batch-duration 10s",
        smallest="--minutes 1 --bids 20000 --rate 100 --history-events 5000 --away 5 --batch-duration 10s",
        full="--minutes 5 --bids 200000 --history-events 20000 --away 20",
    ),
    Entry(
        "peers",
        "peers",
        quick="--rival bytewax --workload join --records 100000 --rounds 1",
        smallest="--rival quix --rival bytewax --workload join --records 20000 --rounds 1",
        full="--workload join --workload sum --workload windows --records 500000 "
        "--rival quix --rival bytewax --rival pyflink-sql",
    ),
    Entry(
        "peers-latency",
        "peers",
        always="--workload latency",
        quick=None,
        smallest="--rival quix --rounds 1 --warm-up 5 --seconds 10",
        full="--rival quix --rival pyflink-sql",
    ),
)
