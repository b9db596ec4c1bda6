"""`flowcore rescale`: distribute the state of a stopped flow over more or fewer partitions."""

import click

from flowcore.cli.flow_argument import find_checkpoints, name_and_settings
from flowcore.settings import Settings


@click.command()
@name_and_settings
@click.option(
    "--shuffle-partitions", "partitions", type=click.IntRange(min=1), required=True,
    help="The partitions of each query's state, thus the most tasks that work on it at once.",
)  # fmt: skip
def rescale(flow: str, settings: Settings, partitions: int) -> None:
    """Distribute the state of a flow's live queries over another number of partitions.

    FLOW is the flow's name, or MODULE:FLOW. Its queries must be stopped. All state is read before and after,
    and compared. The number of key groups (state.key-groups) stays: it limits the tasks that have work.

    \b
    Examples:
      flowcore rescale sales --shuffle-partitions 8
      flowcore rescale my_flows.sales:flow --shuffle-partitions 8 --set state.dir=/var/lib/flows
    """
    from flowcore.spark.run.rescale import rescale_checkpoint  # noqa: PLC0415 - Spark is slow to import
    from flowcore.spark.run.session import live_session, session  # noqa: PLC0415

    checkpoints = find_checkpoints(flow, settings)
    with session(settings, "rescale") as spark:
        live = live_session(spark, settings)
        for checkpoint in checkpoints:
            state = rescale_checkpoint(live, checkpoint, partitions)
            if state is None:
                click.echo(f"{checkpoint.name}: keeps no state, or has {partitions} partitions already")
            else:
                checksum = f"{state.checksum & (1 << 64) - 1:016x}"
                click.echo(f"{checkpoint.name}: {state.rows:,} rows of state, checksum {checksum} as before")
    click.echo(
        f"start the flow with execution.shuffle-partitions={partitions}, by which task slots are counted"
    )
