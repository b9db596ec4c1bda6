"""`flowcore broker`: a Kafka broker in the foreground."""

import contextlib
import json
import signal
from pathlib import Path

import click

from flowcore.errors import ConfigurationError
from flowcore.kafka.broker import EmbeddedBroker
from flowcore.kafka.topics import ensure_topics

__all__ = ["broker"]


def _topic(text: str) -> tuple[str, int]:
    """``NAME`` or ``NAME:PARTITIONS``."""
    name, _, partitions = text.partition(":")
    if not name or not (partitions or "1").isdecimal() or partitions == "0":
        msg = f"{text!r} is not NAME or NAME:PARTITIONS; pass, say, bids:2"
        raise click.BadParameter(msg)
    from flowcore.api.kafka_topic import KafkaTopic  # noqa: PLC0415 - most brokers start without topics

    try:
        KafkaTopic(name)
    except ConfigurationError as error:
        raise click.BadParameter(str(error)) from error
    return name, int(partitions or 1)


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep topics and records in this folder. Default: they are deleted when the broker stops.",
)
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="Port of the broker. Default: a free one."
)
@click.option(
    "--topic",
    "topics",
    type=_topic,
    metavar="NAME[:PARTITIONS]",
    multiple=True,
    help="Create this topic if it is missing. May be repeated.",
)
@click.option("--heap-mib", default=512, show_default=True, help="Heap of the broker's JVM in MiB.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON when the broker is ready.")
def broker(
    data: Path | None, port: int | None, topics: tuple[tuple[str, int], ...], heap_mib: int, as_json: bool
) -> None:
    """Run a Kafka broker on this machine until Ctrl-C.

    It is Apache Kafka with one node, and only this machine can reach it.

    \b
    Examples:
      flowcore broker
      flowcore broker --port 9092 --topic bids:2 --topic enriched-bids
      flowcore broker --data ~/kafka --port 9092
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), EmbeddedBroker(data, port, heap_mib) as running:
        ensure_topics(running.bootstrap_servers, dict(topics))
        if as_json:
            ready = {"bootstrap_servers": running.bootstrap_servers, "log": str(running.log)}
            click.echo(json.dumps(ready))
        else:
            created = (
                ", ".join(f"{name} ({count})" for name, count in dict(topics).items()) or "none requested"
            )
            kept = f"kept in {data}" if data else "deleted when the broker stops (--data DIR keeps it)"
            click.echo(
                f"Kafka is ready at {running.bootstrap_servers}\n"
                f"  topics (partitions): {created}\n"
                f"  data: {kept}\n"
                f"  in Python: KafkaProducer(bootstrap_servers={running.bootstrap_servers!r})\n"
                "Ctrl-C stops it."
            )
        running.wait()
