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
    from kafka import IsolationLevel, KafkaAdminClient, OffsetSpec, TopicPartition
    from kafka.admin import ConfigResource
    from kafka.errors import (
        AuthorizationError,
        KafkaError,
        TopicAlreadyExistsError,
        TopicAuthorizationFailedError,
        for_code,
    )
    from kafka.net.sasl.oauth import AbstractTokenProvider

from flowcore.errors import BrokerAccessError
from flowcore.kafka.refusals import diagnose_tls, login_refused, permission_refused
from flowcore.kafka.security import TOKENS, Security, admin_login, client_login, security_of
from flowcore.kafka.tokens import fetch_token

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ConfigResource",
    "IsolationLevel",
    "KafkaAdminClient",
    "KafkaError",
    "OffsetSpec",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TopicPartition",
    "connect",
    "name_error",
]

_CLIENT_ID: Final = "flowcore"
_IO_THREAD: Final = f"kafka-io-{_CLIENT_ID}"
_POLL_S: Final = 0.1
_LOGIN_REFUSED: Final = (
    confluent_kafka.KafkaError._AUTHENTICATION,  # noqa: SLF001 - codes of librdkafka's own begin so
    confluent_kafka.KafkaError._SSL,  # noqa: SLF001
)
_ALERT: Final = "tls alert"
"""What librdkafka says of a client's certificate that the broker refuses."""
_connected: ContextVar[bool] = ContextVar("_connected", default=False)


class _AddressError(KafkaError):  # type: ignore[misc]  # kafka-python has no types
    """An address that cannot be read: another attempt fails as well."""


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, security: Security) -> None:
        self._security = security

    def token(self) -> str:
        return fetch_token(self._security).text


@contextlib.contextmanager
def connect(bootstrap_servers: str, timeout_s: float) -> Iterator[KafkaAdminClient]:
    """Open a client that has reached a broker; its thread and sockets are closed at the exit.

    Args:
        timeout_s: Seconds to wait at most for a first answer, and then for each further one.

    Raises:
        KafkaError: No broker answers, the address cannot be read, or a request has failed.
        BrokerAccessError: The broker refuses the client or a request, or it is not trusted.
    """
    timeout_ms = round(timeout_s * 1000)
    security = security_of(bootstrap_servers)
    tokens = {"sasl_oauth_token_provider": _TokenProvider(security)} if security.mechanism == TOKENS else {}
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
                **tokens,
                client_id=_CLIENT_ID,
                bootstrap_timeout_ms=timeout_ms,
                request_timeout_ms=timeout_ms,
                reconnect_backoff_ms=50,
                reconnect_backoff_max_ms=200,
                kafka_client=open_client,
            )
            opened.callback(admin.close)
            yield admin
    except AuthorizationError as error:
        raise permission_refused(bootstrap_servers, security, _text(error)) from error
    except RuntimeError as error:  # kafka-python does not find the controller
        raise KafkaError(str(error)) from error
    except ValueError as error:  # `urlsplit` cannot read the address
        raise _AddressError(str(error)) from error
    finally:
        _connected.reset(quiet)


def _probe(bootstrap_servers: str, timeout_s: float) -> KafkaError | BrokerAccessError | None:
    """Wait until a broker has answered librdkafka, whose clients can always be closed.

    Returns:
        Why none has answered, or None.
    """
    for server in bootstrap_servers.split(","):
        _ = urlsplit(f"//{server}").port  # raises if it is not a number
    security = security_of(bootstrap_servers)
    if security.mechanism == TOKENS:
        fetch_token(security)  # raises a clearer error than a client
    reasons: list[confluent_kafka.KafkaError] = []
    login: dict[str, Any] = {**client_login(bootstrap_servers), "log_level": 0, "error_cb": reasons.append}
    try:
        client = librdkafka.AdminClient(
            {**login, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200}
        )
    except confluent_kafka.KafkaException as error:  # a file that cannot be used
        return diagnose_tls(bootstrap_servers, security) or _AddressError(error.args[0].str())
    failure = _wait_for_answer(client, timeout_s, reasons)
    if failure is None:
        return None
    # librdkafka may not see why a broker closes the connection: its own request crosses the broker's alert.
    if found := diagnose_tls(bootstrap_servers, security):
        return found
    refusal = next((reason for reason in reasons if reason.code() in _LOGIN_REFUSED), None)
    return login_refused(bootstrap_servers, security, refusal.str()) if refusal else failure


def _wait_for_answer(
    client: librdkafka.AdminClient, timeout_s: float, reasons: list[confluent_kafka.KafkaError]
) -> KafkaError | None:
    # Not describe_cluster: librdkafka aborts this process if the answer names no broker, as that of a broker
    # which was fenced meanwhile. Any answer about this topic will do.
    topic = librdkafka.ConfigResource("topic", "__consumer_offsets")  # type: ignore[attr-defined]
    (answer,) = client.describe_configs([topic], request_timeout=timeout_s).values()
    # Nothing is raised here: a traceback would keep the client alive.
    while not any(reason.code() in _LOGIN_REFUSED or _ALERT in reason.str() for reason in reasons):
        with contextlib.suppress(TimeoutError):
            error = answer.exception(_POLL_S)
            if error is None or error.args[0].code() > 0:  # the broker's own error
                return None
            client.poll(0)
            return KafkaError(reasons[0].str() if reasons else str(error))
        client.poll(0)
    return KafkaError(reasons[-1].str())


def name_error(code: int, what: str) -> str:
    """Kafka's name of an error that a broker has answered.

    Raises:
        KafkaError: The broker does not allow ``what``.
    """
    kind = for_code(code)
    if issubclass(kind, AuthorizationError):
        raise kind(what)
    return str(kind.__name__)


def _text(error: KafkaError) -> str:
    """Kafka's name of an error that the broker has answered, and what it is about."""
    return ": ".join([error.message, *map(str, error.args)])


def _is_not_ours(record: logging.LogRecord) -> bool:
    return record.threadName != _IO_THREAD and not _connected.get()


# The exception says what went wrong. Other users of kafka-python in this process keep their log: only records
# of our thread, and of callers inside of `connect`, are dropped.
for _name in list(logging.Logger.manager.loggerDict):
    if _name.startswith("kafka."):
        logging.getLogger(_name).addFilter(_is_not_ours)
