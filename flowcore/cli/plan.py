"""`flowcore plan`: the stages and queries of a flow, with the reason of each decision."""

import json
from typing import Literal

import click

from flowcore.api.flow import Flow
from flowcore.cli.flow_argument import flow_and_settings
from flowcore.planner import plan_flow
from flowcore.planner.model import Mode
from flowcore.planner.rules.functions import require_known_functions
from flowcore.settings import Settings
from flowcore.spark.results.store import ResultStore

__all__ = ["plan"]


@click.command()
@flow_and_settings
@click.option(
    "--mode",
    type=click.Choice(["auto", "realtime", "micro-batch", "slice"]),
    default="auto",
    help="Mode of the live queries, as of `run`. auto, the default: the fastest possible.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "mermaid", "svg", "json"]),
    default="text",
    show_default=True,
    help="Readable text, a Mermaid flowchart, an SVG picture, or JSON with every decision.",
)
@click.option(
    "--verbose", is_flag=True, help="Text: all decisions of all operators and edges, also those that are off."
)
def plan(
    flow: Flow,
    settings: Settings,
    mode: Mode | Literal["auto"],
    format_: Literal["text", "mermaid", "svg", "json"],
    *,
    verbose: bool,
) -> None:
    """Print the stages and queries of a flow, with the reason of each decision. Starts no JVM.

    \b
    Examples:
      flowcore plan my_flows.sales:flow
      flowcore plan my_flows.sales:flow --format mermaid > plan.mmd
      flowcore plan my_flows.sales:flow --set pipeline.object-reuse=true --verbose
    """
    if verbose and format_ != "text":
        msg = f"--verbose changes only the text; --format {format_} always shows every decision"
        raise click.UsageError(msg)
    require_known_functions(flow, settings)
    asked = None if mode == "auto" else mode
    planned = plan_flow(flow, asked, settings)
    results = ResultStore(settings.state_dir, flow.name)
    if table_bytes := results.table_bytes(stage.name for stage in planned.bounded if stage.results):
        planned = plan_flow(flow, asked, settings, table_bytes)
    match format_:
        case "json":
            click.echo(json.dumps(planned.to_dict(), indent=2))
        case "mermaid":
            click.echo(planned.to_mermaid())
        case "svg":
            click.echo(planned.to_svg())
        case "text":
            click.echo(planned.explain(verbose=verbose))
