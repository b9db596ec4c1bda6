"""`flowcore doctor`: the requirements of flowcore, those that are missing, and how to fix them."""

import dataclasses
import json

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowcore.errors import BrokerError, SettingsError
from flowcore.escaping import printable
from flowcore.installation.checks import Check, run_checks
from flowcore.settings import Settings

__all__ = ["doctor"]

_STYLES = {"ok": "green", "warn": "yellow", "missing": "bold red"}
_BROKER_TIMEOUT_S = 5.0


@click.command()
@click.option(
    "--bootstrap-servers",
    metavar="HOST:PORT[,...]",
    envvar="FLOWCORE_KAFKA_BOOTSTRAP_SERVERS",
    help="Check also whether this Kafka broker answers; login and encryption are those of the settings.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list instead of a table.")
def doctor(bootstrap_servers: str | None, as_json: bool) -> None:
    """Check the requirements of flowcore on this machine, and say how to fix what is missing.

    The exit code is 1 if flowcore cannot work without something that is missing.

    \b
    Examples:
      flowcore doctor
      flowcore doctor --bootstrap-servers 127.0.0.1:9092 --json
    """
    checks = run_checks()
    if bootstrap_servers is not None:
        checks.append(_broker(bootstrap_servers))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        table = Table("", "", "found", "what for", box=None, padding=(0, 2, 0, 0))
        for check in checks:
            status = Text(check.status, style=_STYLES[check.status])
            table.add_row(status, check.name, Text(printable(check.found), overflow="fold"), check.purpose)
        console = Console()
        console.print(table)
        for check in checks:
            if check.mend:
                console.print(
                    Text(printable(f"{check.name}: {check.mend}"), style=_STYLES[check.status]),
                    soft_wrap=True,
                )
    if any(check.status == "missing" for check in checks):
        raise SystemExit(1)


def _broker(servers: str) -> Check:
    # The clients are slow to import.
    from flowcore.kafka.security import BrokerAddress, Security  # noqa: PLC0415
    from flowcore.kafka.topics import wait_until_ready  # noqa: PLC0415

    purpose = "the given Kafka broker"
    try:
        servers = BrokerAddress(servers, Security.of(Settings.of()))
        wait_until_ready(servers, _BROKER_TIMEOUT_S, lambda: None)
    except (BrokerError, SettingsError) as error:
        return Check("Broker", "missing", str(error), purpose, "start it, or: flowcore broker --port 9092")
    return Check("Broker", "ok", f"{servers} answers", purpose)
