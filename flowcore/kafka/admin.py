"""Administration of a broker: kafka-python's admin client for a few requests.

`connect` probes the broker with librdkafka first, because kafka-python leaves sockets behind if its first
connection fails. Every wait has a timeout, and nothing of the client remains afterwards.

Only this module imports kafka-python.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import confluent_kafka
from confluent_kafka import admin as librdkafka

with warnings.catch_warnings():
    # kafka-python finds its message formats by a function that only Python 3.11 and 3.12 deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, OffsetSpec, TopicPartition
    from kafka.admin import ConfigResource
    from kafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from flowcore.kafka.security import admin_login, client_login

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ConfigResource",
    "KafkaAdminClient",
    "KafkaError",
    "OffsetSpec",
    "TopicAlreadyExistsError",
    "TopicPartition",
    "connect",
    "for_code",
]

_CLIENT_ID: Final = "flowcore"
_IO_THREAD: Final = f"kafka-io-{_CLIENT_ID}"
_POLL_S: Final = 0.1
_LOGIN_REFUSED: Final = (
    confluent_kafka.KafkaError._AUTHENTICATION,  # noqa: SLF001 - codes of librdkafka's own begin so
    confluent_kafka.KafkaError._SSL,  # noqa: SLF001
)
_connected: ContextVar[bool] = ContextVar("_connected", default=False)


class _RefusedError(KafkaError):  # type: ignore[misc]  # kafka-python has no types
    """A login that a broker refuses, or an address that cannot be read: another attempt fails as well."""


@contextlib.contextmanager
def connect(bootstrap_servers: str, timeout_s: float) -> Iterator[KafkaAdminClient]:
    """Open a client that has reached a broker; its thread and sockets are closed at the exit.

    Args:
        timeout_s: Seconds to wait at most for a first answer, and then for each further one.

    Raises:
        KafkaError: No broker answers, the address cannot be read, or a request has failed.
    """
    timeout_ms = round(timeout_s * 1000)
    quiet = _connected.set(True)
    try:
        if failure := _probe(bootstrap_servers, timeout_s):
            raise failure
        with contextlib.ExitStack() as opened:

            def open_client(**settings: Any) -> Any:
                # An admin client whose constructor raises has no close() that could be called.
                client = KafkaAdminClient.DEFAULT_CONFIG["kafka_client"](**settings)
                opened.callback(client.close)
                return client

            admin = KafkaAdminClient(
                bootstrap_servers=str(bootstrap_servers),
                **admin_login(bootstrap_servers),
                client_id=_CLIENT_ID,
                bootstrap_timeout_ms=timeout_ms,
                request_timeout_ms=timeout_ms,
                reconnect_backoff_ms=50,
                reconnect_backoff_max_ms=200,
                kafka_client=open_client,
            )
            opened.callback(admin.close)
            yield admin
    except RuntimeError as error:  # kafka-python does not find the controller
        raise KafkaError(str(error)) from error
    except ValueError as error:  # `urlsplit` cannot read the address
        raise _RefusedError(str(error)) from error
    finally:
        _connected.reset(quiet)


def _probe(bootstrap_servers: str, timeout_s: float) -> KafkaError | None:
    """Wait until a broker has answered librdkafka, whose clients can always be closed.

    Returns:
        Why none has answered, or None.
    """
    for server in bootstrap_servers.split(","):
        _ = urlsplit(f"//{server}").port  # raises if it is not a number
    reasons: list[confluent_kafka.KafkaError] = []
    login: dict[str, Any] = {**client_login(bootstrap_servers), "log_level": 0, "error_cb": reasons.append}
    client = librdkafka.AdminClient({**login, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200})
    # Not describe_cluster: librdkafka aborts this process if the answer names no broker, as that of a broker
    # which was fenced meanwhile. Any answer about this topic will do.
    topic = librdkafka.ConfigResource("topic", "__consumer_offsets")  # type: ignore[attr-defined]
    (answer,) = client.describe_configs([topic], request_timeout=timeout_s).values()
    # Nothing is raised here: a traceback would keep the client alive.
    while not any(reason.code() in _LOGIN_REFUSED for reason in reasons):
        with contextlib.suppress(TimeoutError):
            error = answer.exception(_POLL_S)
            if error is None or error.args[0].code() > 0:  # the broker's own error
                return None
            client.poll(0)
            return KafkaError(reasons[0].str() if reasons else str(error))
        client.poll(0)
    return _RefusedError(reasons[-1].str())


def _is_not_ours(record: logging.LogRecord) -> bool:
    return record.threadName != _IO_THREAD and not _connected.get()


# The exception says what went wrong. Other users of kafka-python in this process keep their log: only records
# of our thread, and of callers inside of `connect`, are dropped.
for _name in list(logging.Logger.manager.loggerDict):
    if _name.startswith("kafka."):
        logging.getLogger(_name).addFilter(_is_not_ours)
