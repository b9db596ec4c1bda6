"""A Kafka broker in a container that a test can stop, pause and kill.

`KafkaBroker` is a testcontainers container. It keeps its addresses over a restart and its data over a kill.
It needs a Docker engine but pulls no image; see `flowcore.testing.kafka_image`.

It uses no reaper container, whose image might have to be pulled. The container is removed when this process
ends. If the process was killed, the next start removes it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, cast

from docker.errors import APIError, DockerException, NotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from flowcore.errors import BrokerError, InstallationError
from flowcore.kafka.broker import free_port
from flowcore.kafka.topics import wait_until_ready
from flowcore.metrics.health import process_exists
from flowcore.testing.kafka_image import kafka_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from docker import DockerClient

__all__ = ["KafkaBroker"]

_HOST = "127.0.0.1"
_PROPERTIES = Path(__file__).with_name("kafka_image") / "server.properties"
_OWNER_LABEL = "flowcore.owner"
_LOG_LINES = 40


class KafkaBroker(DockerContainer):
    """Apache Kafka 4.2 (KRaft, one node) in a container.

    >>> with KafkaBroker() as broker:  # doctest: +SKIP
    ...     broker.kill()
    ...     broker.bring_back()

    Args:
        image: An image that follows the contract of ``apache/kafka``. By default the one that the environment
            variable FLOWCORE_KAFKA_IMAGE names, else an image that is built from this machine's files.
        pem: Key and certificate chain of the broker. With it, the listener `secure` uses SASL_SSL with
            SCRAM-SHA-512; without it, PLAINTEXT.

    Raises:
        InstallationError: No Docker engine answers, or there is no image.
    """

    def __init__(self, image: str | None = None, pem: bytes | None = None) -> None:
        try:
            super().__init__("", env={"CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw"})
        except DockerException as error:
            msg = (
                f"no Docker engine answers ({error}): the Kafka container cannot start; start the "
                "engine, or run deploy/check kafka, which as root on Debian installs and starts one"
            )
            raise InstallationError(msg) from error
        self.image = image or kafka_image(self._client)
        plain = free_port()
        # Fixed ports, because an ephemeral port changes when a container is killed and started.
        addresses = {"9092/tcp": (_HOST, plain), "9094/tcp": (_HOST, free_port(besides=plain))}
        self.ports = cast("dict[str, int | None]", addresses)  # Docker's client also accepts hosts
        self.bootstrap_servers, self.secure = (f"{host}:{port}" for host, port in addresses.values())
        # With the host, since a container engine may serve several machines.
        self.with_kwargs(labels={_OWNER_LABEL: f"{socket.gethostname()}/{os.getpid()}"})
        self._server_properties = _PROPERTIES.read_text().format(
            plain=self.bootstrap_servers, secure=self.secure, protocol="SASL_SSL" if pem else "PLAINTEXT"
        )
        self.with_copy_into_container(pem or b"", "/etc/kafka/secrets/broker.pem")

    @property
    def _client(self) -> DockerClient:
        return self.get_docker_client().client

    def with_properties(self, lines: str) -> Self:
        """Add lines to the broker's ``server.properties`` before it starts; the last line of a key counts."""
        self._server_properties += lines
        return self

    def start(self) -> Self:
        """Create and start the container, and wait until the broker answers a client.

        Raises:
            BrokerError: The broker ended or did not answer; the message has its last lines.
        """
        _remove_orphans(self._client)
        atexit.register(self.stop)
        properties = self._server_properties.encode()
        self.with_copy_into_container(properties, "/mnt/shared/config/server.properties")
        with _no_reaper():
            super().start()
        return self.wait_ready()

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Remove the container and its data; `halt`, `kill` and `pause` simulate faults."""
        atexit.unregister(self.stop)
        with contextlib.suppress(NotFound):
            super().stop(force, delete_volume)
        self._container = None

    def halt(self) -> None:
        """Stop the broker cleanly, as for an upgrade; `bring_back` starts it again."""
        self.get_wrapped_container().stop()

    def kill(self) -> None:
        """Kill the broker, as when its machine is lost; `bring_back` starts it again."""
        self.get_wrapped_container().kill()

    def bring_back(self) -> Self:
        """Start a halted or killed broker on the same data and address, and wait for it."""
        self.get_wrapped_container().start()
        return self.wait_ready()

    def pause(self) -> None:
        """Freeze the broker: connections stay open without answers until `resume`."""
        self.get_wrapped_container().pause()

    def resume(self) -> Self:
        """Resume a paused broker, and wait until it answers."""
        self.get_wrapped_container().unpause()
        return self.wait_ready()

    def wait_ready(self, timeout_s: float = 60) -> Self:
        """Wait until the broker answers a client.

        Raises:
            BrokerError: The broker ended or did not answer in time; the message has its last lines.
        """
        try:
            wait_until_ready(self.bootstrap_servers, timeout_s, self._check)
        except BrokerError as error:
            lines: bytes = self.get_wrapped_container().logs(tail=_LOG_LINES)
            msg = f"{error}; its last lines are\n{lines.decode(errors='replace')}"
            raise BrokerError(msg) from error
        return self

    def _check(self) -> None:
        self.reload()
        if self.status == "exited":
            msg = f"the Kafka container of image {self.image} has ended"
            raise BrokerError(msg)


def _remove_orphans(client: DockerClient) -> None:
    """Remove the brokers of processes on this machine that were killed."""
    # Other processes may remove containers at the same time.
    found = client.containers.list(all=True, ignore_removed=True, filters={"label": _OWNER_LABEL})
    for container in found:
        host, _, pid = container.labels[_OWNER_LABEL].rpartition("/")
        if host == socket.gethostname() and not process_exists(int(pid)):
            with contextlib.suppress(APIError):
                container.remove(force=True, v=True)


@contextlib.contextmanager
def _no_reaper() -> Iterator[None]:
    """Disable testcontainers' reaper for this container, not for other containers of the user."""
    before = testcontainers_config.ryuk_disabled
    testcontainers_config.ryuk_disabled = True
    try:
        yield
    finally:
        testcontainers_config.ryuk_disabled = before
