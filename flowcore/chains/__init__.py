"""Chains: run consecutive Python functions in one call of a Python worker."""

from flowcore.chains.downstream import DownstreamChain
from flowcore.chains.passing import FailedRows, OutletRows, PassingChain
from flowcore.chains.steps import ChainSpec, Copy, Receiver, RecordDict, Step, StepKind
from flowcore.chains.task import ChainOutput, ChainTask

__all__ = [
    "ChainOutput", "ChainSpec", "ChainTask", "Copy", "DownstreamChain", "FailedRows", "OutletRows",
    "PassingChain", "Receiver", "RecordDict", "Step", "StepKind",
]  # fmt: skip
