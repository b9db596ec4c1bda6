"""`flowcore plan`: what would run, and why so."""

from __future__ import annotations

import click

from flowcore.cli.flow_argument import flow_and_settings
from flowcore.graph.flow import Flow
from flowcore.planner import plan_flow
from flowcore.planner.explain import explain
from flowcore.planner.plan import Mode
from flowcore.settings import Settings

__all__ = ["plan"]


@click.command()
@flow_and_settings
@click.option("--mode", type=click.Choice(["realtime", "micro-batch", "slice"]), help="Default: the fastest.")
def plan(flow: Flow, settings: Settings, mode: Mode | None) -> None:
    """Print the stages and queries of a flow, with the reason of each decision. Starts no JVM.

    \b
    Example:
      flowcore plan pipelines.auctions.flow:flow
    """
    click.echo(explain(plan_flow(flow, mode, settings)))
