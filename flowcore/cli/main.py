"""The `flowcore` command. Each subcommand is a module, which is imported only when it is called."""

import gc
import importlib
import io
import sys
import traceback

import click

from flowcore.errors import FlowcoreError
from flowcore.escaping import printable_lines

__all__ = ["main"]

_COMMANDS = {
    "bench": "Run the benchmarks of a checkout.",
    "broker": "Run a Kafka broker on this machine until Ctrl-C.",
    "doctor": "Check the requirements of flowcore on this machine.",
    "latency": "Show the end-to-end latency of a running flow.",
    "plan": "Print the stages and queries of a flow, with reasons.",
    "report": "Write the history of a flow's live runs as an HTML page.",
    "replay": "Replay transcripts: test scripts of inputs and expected outputs.",
    "rescale": "Distribute the state of a stopped flow over other partitions and key groups.",
    "run": "Run a flow: first bounded stages, then live queries.",
    "setup": "Download jars and prepare a fast start of Spark's JVM.",
    "state": "Show the state in a flow's checkpoints.",
    "top": "Show the progress of a flow's live run.",
    "watermarks": "Show which channels hold a flow's event time, and release one.",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        gc.disable()  # nothing that is imported is garbage, and looking for it takes a tenth of the time
        try:
            command = getattr(importlib.import_module(f"flowcore.cli.{cmd_name}"), cmd_name)
        finally:
            gc.freeze()
            gc.enable()
        assert isinstance(command, click.Command)  # noqa: S101 - a fact for the type checker
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        # Help must not import the subcommands, some of which import Spark.
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_Lazy)
@click.version_option(package_name="flowcore")
def flowcore() -> None:
    """Stream processing with Flink's semantics on Spark.

    \b
    Examples:
      flowcore setup
      flowcore doctor
      flowcore broker --port 9092 --topic bids:2
      flowcore plan my_flows.sales:flow
      flowcore run my_flows.sales:flow --set kafka.bootstrap.servers=127.0.0.1:9092
    """


def main() -> None:
    """Entry point. Flowcore's own errors are printed with their notes, without a traceback.

    Texts of errors quote data, so what controls a terminal is shown as escapes.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name that it cannot show must not fail a command
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        flowcore.main(prog_name="flowcore", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(130)
    except FlowcoreError as error:
        lines = "\n".join([str(error), *getattr(error, "__notes__", ())])
        click.echo(f"error: {printable_lines(lines)}", err=True)
        sys.exit(1)
    except Exception:  # noqa: BLE001 - it is shown as Python would show it, and made printable
        click.echo(printable_lines(traceback.format_exc()), err=True, nl=False)
        sys.exit(1)


if __name__ == "__main__":
    main()
