"""The `flowcore` command: one subcommand a module, each imported only when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from flowcore.errors import FlowcoreError

__all__ = ["main"]

_COMMANDS = {
    "bench": "Measure flowcore against a rival in the same run.",
    "broker": "Run a real Kafka broker on this machine until Ctrl-C.",
    "doctor": "Check that this machine has what flowcore needs.",
    "latency": "Show how long records take to the sinks of a running flow.",
    "plan": "Print in which stages and modes a flow would run, and why.",
    "report": "Write the history of a flow's live runs as one page of plots.",
    "replay": "Replay transcripts: scripts of steps and of what has to come out.",
    "run": "Run a flow: bounded stages as needed, then live.",
    "setup": "Fetch jars and prepare Spark's JVM for a fast start.",
    "state": "Show what a flow keeps, as its checkpoints have it.",
    "top": "Show how a flow that runs elsewhere is doing.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(f"flowcore.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101 - a fact for the type checker
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # Help must not import Spark to print a line of text.
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_Lazy)
@click.version_option(package_name="flowcore")
def flowcore() -> None:
    """Stream processing with Flink's semantics on Spark.

    \b
    Examples:
      flowcore doctor
      flowcore broker --port 9092 --topic bids:2
      flowcore plan pipelines.auctions.flow:flow
      flowcore run pipelines.auctions.flow:flow --set kafka.bootstrap.servers=127.0.0.1:9092
    """


def main() -> None:
    """Entry point: errors that flowcore raises on purpose are one line, without a traceback."""
    try:
        flowcore.main(prog_name="flowcore", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except FlowcoreError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
