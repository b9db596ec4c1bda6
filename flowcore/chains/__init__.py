"""Chains: how do Python functions run one after another in one call of a Python worker?"""

from __future__ import annotations

from flowcore.chains.behind import ChainBehind
from flowcore.chains.passing import Failing, PassingChain, Way
from flowcore.chains.reuse_check import CheckMode
from flowcore.chains.steps import ChainSpec, Copy, Kind, Receiver, Record, Step
from flowcore.chains.task import ChainTask, Output

__all__ = [
    "ChainBehind", "ChainSpec", "ChainTask", "CheckMode", "Copy", "Failing", "Kind", "Output", "PassingChain",
    "Receiver", "Record", "Step", "Way",
]  # fmt: skip
