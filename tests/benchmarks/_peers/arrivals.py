"""Sends bids at random moments until a line is read, and prints how many it has sent.

It is a process of its own, so that it does not wait for the threads that measure. Its arguments are the
broker, the topic and the bids a second.
"""

from __future__ import annotations

import itertools
import sys
import threading

import click
import numpy as np

from pipelines.nexmark import feed
from tests.benchmarks._peers.workloads import bids_of

_PART = 1_000


def main(servers: str, topic: str, rate: float) -> None:
    """Send until the input has a line or ends."""
    stop = threading.Event()
    threading.Thread(target=_await_line, args=(stop,), daemon=True).start()
    bids = (bids_of(np.arange(start, start + _PART)) for start in itertools.count(0, _PART))
    click.echo(feed.feed(servers, topic, bids, rate, key="key", at_random=True, stop=stop).sent)


def _await_line(stop: threading.Event) -> None:
    sys.stdin.readline()
    stop.set()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
