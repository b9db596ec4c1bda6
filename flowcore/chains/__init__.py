"""Chains: run consecutive Python functions in one call of a Python worker."""

from flowcore.chains.passing import FailedRows, OutletRows, PassingChain
from flowcore.chains.steps import ChainSpec, Copy, Receiver, RecordDict, Step, StepKind, asks_for_attributes
from flowcore.chains.task import ChainOutput, ChainTask, DownstreamChain

__all__ = [
    "ChainOutput", "ChainSpec", "ChainTask", "Copy", "DownstreamChain", "FailedRows", "OutletRows",
    "PassingChain", "Receiver", "RecordDict", "Step", "StepKind", "asks_for_attributes",
]  # fmt: skip
