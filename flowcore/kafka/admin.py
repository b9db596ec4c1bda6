"""How does one put a question to a broker and leave nothing behind, answered or not?

`connected` lends kafka-python's admin client for a few requests. What it adds to the client: a
failed start is closed as well, no socket waits for the garbage collector, every wait has an end,
and the client's own log stays out of the terminal. Nothing here knows of topics.

The client is imported here only: the other names are what its users need to speak to it.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import warnings
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

with warnings.catch_warnings():
    # How the client finds its message formats is deprecated in Python 3.11 and 3.12, not after.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, OffsetSpec, TopicPartition
    from kafka.admin import ConfigResource
    from kafka.errors import KafkaError, TopicAlreadyExistsError, for_code
    from kafka.net.compat import KafkaNetClient
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.selector import NetworkSelector

from flowcore.kafka.security import admin_login

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from socket import socket

__all__ = [
    "ConfigResource",
    "KafkaAdminClient",
    "KafkaError",
    "OffsetSpec",
    "TopicAlreadyExistsError",
    "TopicPartition",
    "connected",
    "for_code",
]

_CLIENT_ID = "flowcore"
_IO_THREAD = f"kafka-io-{_CLIENT_ID}"
_asking: ContextVar[bool] = ContextVar("_asking", default=False)


@contextlib.contextmanager
def connected(bootstrap_servers: str, timeout_s: float) -> Iterator[KafkaAdminClient]:
    """Lend a client that has reached a broker; its thread and its sockets are gone afterwards.

    Args:
        bootstrap_servers: Address of the broker, ``host:port[,host:port...]``.
        timeout_s: Seconds to wait at most for a first answer, and then for each further one.

    Raises:
        KafkaError: No broker answers, the address cannot be read, or a request has failed.
    """
    timeout_ms = round(timeout_s * 1000)
    login = admin_login(bootstrap_servers)
    quiet = _asking.set(True)
    try:
        with contextlib.ExitStack() as opened:

            def open_net(**settings: Any) -> KafkaNetClient:
                # A constructor that fails hands out no admin client that could be closed, and its
                # thread would run for ever: so what is to be closed is opened here.
                net = NetworkSelector(**settings)
                opened.callback(net.close)
                # The admin client has no setting for this one; a listener may be out of reach.
                client = KafkaNetClient(net=net, **settings, socket_connection_setup_timeout_ms=timeout_ms)
                opened.callback(client.close)
                # Called first: while the thread runs, closing would race with it.
                opened.callback(net.stop)
                return client

            yield KafkaAdminClient(
                bootstrap_servers=str(bootstrap_servers),
                **login,
                ssl_context=_ssl_context(login),
                client_id=_CLIENT_ID,
                bootstrap_timeout_ms=timeout_ms,
                request_timeout_ms=timeout_ms,
                reconnect_backoff_ms=50,
                reconnect_backoff_max_ms=200,
                kafka_client=open_net,
                proxy_url=f"{_Socket.SCHEMES[0]}://",
            )
    except (RuntimeError, ValueError) as error:
        # The client's words for a controller that it cannot find and a port that is no number.
        raise KafkaError(str(error)) from error
    finally:
        _asking.reset(quiet)


class _Socket(KafkaNetSocket):  # type: ignore[misc] # the client has no types
    """A direct connection whose socket is closed if it fails, which the client forgets to do."""

    SCHEMES = ("flowcore-direct",)

    async def sock_connect(
        self, net: NetworkSelector, sock: socket, sockaddr: Any, timeout_at: float | None = None
    ) -> socket:
        try:
            await super().sock_connect(net, sock, sockaddr, timeout_at)
        except BaseException:
            sock.close()
            raise
        return sock


class _SslSocket(ssl.SSLSocket):
    """A socket that is closed if the broker's certificate is refused, which the client forgets to do."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except BaseException:
            self.close()
            raise


def _ssl_context(login: Mapping[str, str | None]) -> ssl.SSLContext | None:
    if login["security_protocol"] not in ("SSL", "SASL_SSL"):
        return None
    context = ssl.create_default_context(cafile=login["ssl_cafile"])
    context.sslsocket_class = _SslSocket
    if login["ssl_certfile"]:
        context.load_cert_chain(login["ssl_certfile"], login["ssl_keyfile"])
    return context


def _is_not_ours(record: logging.LogRecord) -> bool:
    return record.threadName != _IO_THREAD and not _asking.get()


# What goes wrong is in the exception. Other users of the client in this process keep their log:
# only records of our thread, and of callers while they ask, are dropped.
for _name in list(logging.Logger.manager.loggerDict):
    if _name.startswith("kafka."):
        logging.getLogger(_name).addFilter(_is_not_ours)
