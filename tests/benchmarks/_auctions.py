"""Topics, event generator and fresh checkpoints for benchmarks of the reference flow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flowcore import Flow, KafkaTopic
from flowcore.api.connector_operators import Read
from flowcore.api.node import Operator
from flowcore.spark.context import Context
from pipelines.auctions.flow import flow
from pipelines.nexmark import generator

__all__ = ["BIDS", "CONFIG", "ENRICHED", "HIGHEST", "PARTITIONS", "fresh_context", "read_from"]

PARTITIONS = 2
BIDS, ENRICHED, HIGHEST = "bids", "enriched-bids", "highest-bids"
CONFIG = generator.NexmarkConfig()


def fresh_context(context: Context, state: Path) -> Context:
    """A context with new checkpoints, so that a run reads all bids, and with the same bounded results."""
    (state / flow.name).mkdir(parents=True)
    (state / flow.name / "results").symlink_to(context.settings.state_dir / flow.name / "results")
    return Context(context.spark, replace(context.settings, state_dir=state), flow.name)


def read_from(topic: str) -> Flow:
    """The reference flow with its bids from another topic."""
    copy, copies = Flow(flow.name), dict[int, Operator]()
    for node in flow.operators:
        inputs = tuple(copies[id(each)] for each in node.inputs)
        if isinstance(node, Read) and isinstance(node.source, KafkaTopic):
            made: Operator = replace(node, source=replace(node.source, name=topic))
        else:
            made = replace(node, inputs=inputs) if inputs else node
        copies[id(node)] = made
        copy.register(made)
    return copy
