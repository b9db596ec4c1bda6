"""`flowcore rescale`: distribute the state of a stopped flow over other partitions and key groups."""

from pathlib import Path
from typing import Any

import click

from flowcore.cli.flow_argument import find_checkpoints, name_and_settings
from flowcore.settings import Settings


@click.command()
@name_and_settings
@click.option(
    "--shuffle-partitions", "partitions", type=click.IntRange(min=1),
    help="The partitions of each query's state, thus the most tasks that work on it at once.",
)  # fmt: skip
@click.option(
    "--key-groups", type=click.IntRange(min=1),
    help="The key groups of each query's state, thus the most partitions that have work.",
)  # fmt: skip
def rescale(flow: str, settings: Settings, partitions: int | None, key_groups: int | None) -> None:
    """Distribute the state of a flow's live queries over other numbers of partitions and key groups.

    FLOW is the flow's name, or MODULE:FLOW. Its queries must be stopped. All state is read before and after,
    and compared. More partitions than key groups have no work.

    \b
    Examples:
      flowcore rescale sales --shuffle-partitions 8
      flowcore rescale sales --key-groups 64 --shuffle-partitions 16
      flowcore rescale my_flows.sales:flow --shuffle-partitions 8 --set state.dir=/var/lib/flows
    """
    from flowcore.spark.run.session import live_session, session  # noqa: PLC0415 - Spark is slow to import

    if partitions is None and key_groups is None:
        msg = "nothing to change; pass --shuffle-partitions, --key-groups or both"
        raise click.UsageError(msg)
    checkpoints = find_checkpoints(flow, settings)
    with session(settings, "rescale") as spark:
        live = live_session(spark, settings)
        for checkpoint in checkpoints:
            if key_groups is not None:
                _regroup(live, checkpoint, key_groups)
            if partitions is not None:
                _repartition(live, checkpoint, partitions)
    if key_groups is not None:
        click.echo(f"start the flow with state.key-groups={key_groups}")
    if partitions is not None:
        click.echo(
            f"start the flow with execution.shuffle-partitions={partitions}, by which task slots are counted"
        )


def _regroup(spark: Any, checkpoint: Path, key_groups: int) -> None:
    from flowcore.spark.run.regroup import regroup_checkpoint  # noqa: PLC0415

    digest = regroup_checkpoint(spark, checkpoint, key_groups)
    if digest is None:
        click.echo(f"{checkpoint.name}: keeps no state by key group, or has {key_groups} key groups already")
    else:
        shown = f"{digest.entries:,} entries of state, checksum {digest.checksum:016x} as before"
        click.echo(f"{checkpoint.name}: {shown}, in {key_groups} key groups")


def _repartition(spark: Any, checkpoint: Path, partitions: int) -> None:
    from flowcore.spark.run.rescale import rescale_checkpoint  # noqa: PLC0415

    state = rescale_checkpoint(spark, checkpoint, partitions)
    if state is None:
        click.echo(f"{checkpoint.name}: keeps no state, or has {partitions} partitions already")
    else:
        checksum = f"{state.checksum & (1 << 64) - 1:016x}"
        click.echo(f"{checkpoint.name}: {state.rows:,} rows of state, checksum {checksum} as before")
