"""Requests to a schema registry with Confluent's interface: the versions of a subject, and registration.

Each request is made anew: nothing is kept between two starts of a run. What a registry refuses is one line,
without a password. Waits are in seconds.
"""

from __future__ import annotations

import http
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import urlsplit

from flowcore.background import call_within
from flowcore.causes import causes_of
from flowcore.errors import InstallationError, RegistryError, SettingsError, UnreachableRegistryError
from flowcore.kafka.refusals import HTTP_BUSY, TLS_CLOSED

if TYPE_CHECKING:
    from flowcore.settings import Settings

__all__ = ["SchemaRegistry", "SchemaVersion"]

_TIMEOUT_S = 10
_LIMIT_S = 60
"""For a whole answer, and a second one if the first fails."""
_MOST_BYTES = 4 << 20
"""Of an answer, as it arrives."""
_MOST_VERSIONS = 1_000
"""Of a subject. Each is a request."""
_MOST_TEXT = 16 << 20
"""Characters of the schemas of all versions of a subject."""
_RETRIES = 1
_RETRY_MS = 500
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOGIN, _TOKEN = "schema-registry.basic.auth.user.info", "schema-registry.bearer.auth.token"
_CA = "schema-registry.ssl.ca.location"
_AVRO = "AVRO"
_MISSING = (40401, 40402, 40403)
"""Error codes of a registry that does not have a subject, a version or a schema."""
_CLOUD_FIELDS = ("bearer.auth.logical.cluster", "bearer.auth.identity.pool.id")
"""Confluent's cloud uses these with a token; the client requires both (the second one until 2.16)."""
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a subject.

    Attributes:
        number: 1 for the first version of the subject.
        id: The schema's id in the registry, which values begin with.
        schema: The schema as JSON text.
    """

    number: int
    id: int
    schema: str


class SchemaRegistry:
    """The schema registry of a run's settings; a context manager that closes its connections.

    Raises:
        SettingsError: Its settings contradict each other, or none is set.
        InstallationError: The client's packages are not installed.
    """

    def __init__(self, settings: Settings) -> None:
        self.url = _checked_url(settings)
        self._settings = settings
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        try:
            from confluent_kafka.schema_registry import (  # noqa: PLC0415 - takes a second, and few runs need it
                Schema,
                SchemaRegistryClient,
                SchemaRegistryError,
            )
        except ImportError as error:
            msg = (
                f"the schema registry {self.url} cannot be asked: {error}; run: "
                "pip install 'flowcore[schema-registry]'"
            )
            raise InstallationError(msg) from error
        self._schema, self._refusal = Schema, SchemaRegistryError
        try:
            client = SchemaRegistryClient(self._client_config())
        except OSError as error:  # ssl.SSLError, too
            msg = (
                f"{_CA}={str(self._settings.registry_ca)!r} cannot be used ({error}): no registry could be "
                "trusted; pass a PEM file that begins with BEGIN CERTIFICATE"
            )
            raise SettingsError(msg) from error
        self._client = self._closing.enter_context(client)
        session: Any = client._rest_client.session  # noqa: SLF001 - the client bounds no answer
        session.headers["Accept-Encoding"] = "identity"
        session.event_hooks = {"response": [_read_bounded]}
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def versions(self, subject: str) -> tuple[SchemaVersion, ...]:
        """The versions of a subject, the oldest first; none if it does not exist.

        Raises:
            RegistryError: The registry refuses, or a version is not a whole Avro schema.
            UnreachableRegistryError: The registry does not answer.
        """
        numbers = self._ask("get_versions", subject) or []
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            self._refuse_answer(subject, "its versions are not a list of numbers")
        if len(numbers) > _MOST_VERSIONS:
            self._refuse_amount(subject, f"{len(numbers):,} versions, more than {_MOST_VERSIONS:,}")
        found, size = [], 0
        for number in sorted(numbers):
            found.append(self._version(subject, number))
            size += len(found[-1].schema)
            if size > _MOST_TEXT:
                self._refuse_amount(subject, f"schemas of more than {_MOST_TEXT:,} characters")
        return tuple(found)

    def find_id(self, subject: str, schema: str) -> int | None:
        """The id of a schema in a subject; None if the subject does not have it. Raises as `versions`."""
        found = self._ask("lookup_schema", subject, self._schema(schema, _AVRO))
        return None if found is None else self._id(subject, found.schema_id)

    def is_compatible(self, subject: str, schema: str) -> bool:
        """Whether the subject's rule allows a schema as its next version. Raises as `versions`."""
        return self._ask("test_compatibility", subject, self._schema(schema, _AVRO)) is not False

    def register(self, subject: str, schema: str) -> int:
        """Register a schema as a version of a subject, and return its id. Raises as `versions`."""
        return self._id(subject, self._ask("register_schema", subject, self._schema(schema, _AVRO)))

    def _version(self, subject: str, number: int) -> SchemaVersion:
        found = self._ask("get_version", subject, number)
        schema = None if found is None else found.schema
        kind = _AVRO if schema is None else schema.schema_type or _AVRO
        if schema is None or kind != _AVRO or schema.references:
            what = f"is {kind}" if kind != _AVRO else "refers to other subjects" if schema else "is gone"
            msg = (
                f"version {number} of subject {subject!r} at {self.url} {what}: its values cannot be read; "
                "name a subject whose versions are whole Avro schemas by format_options={'subject': ...}"
            )
            raise RegistryError(msg)
        if not isinstance(schema.schema_str, str):
            self._refuse_answer(subject, f"version {number} has no schema")
        return SchemaVersion(number, self._id(subject, found.schema_id), schema.schema_str)

    def _id(self, subject: str, number: object) -> int:
        if type(number) is not int:
            self._refuse_answer(subject, "a schema has no id")
        return number

    def _ask(self, request: str, *arguments: object) -> Any:
        """The result of the client's method; None if the registry does not have the named object."""
        with self._translated(arguments[0]):
            try:
                return call_within(_LIMIT_S, lambda: getattr(self._client, request)(*arguments))
            except self._refusal as error:
                if error.error_code in _MISSING:
                    return None
                raise

    @contextmanager
    def _translated(self, subject: object) -> Iterator[None]:
        try:
            yield
        except self._refusal as error:
            self._raise_refusal(subject, error)
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
            self._refuse_answer(subject, str(error)[:_SHOWN], error)
        except Exception as error:
            refused = next((each for each in causes_of(error) if isinstance(each, ssl.SSLError)), None)
            if refused is not None and not isinstance(refused, TLS_CLOSED):
                reason = getattr(refused, "verify_message", None) or refused.reason or refused
                ca = self._settings.registry_ca
                known = "is not set" if ca is None else f"is {str(ca)!r}"
                msg = (
                    f"the schema registry {self.url} is not trusted ({reason}): what answers could read the "
                    f"login; {_CA} {known}: set it to the PEM file of the authority that signed its "
                    "certificate, and use a name of that certificate in schema-registry.url"
                )
                raise RegistryError(msg) from error
            msg = (
                f"the schema registry {self.url} does not answer ({type(error).__name__}: {error}): the ids "
                "of schemas are not known, so nothing was read or written; start it, or correct "
                "schema-registry.url"
            )
            raise UnreachableRegistryError(msg) from error

    def _refuse_answer(self, subject: object, why: str, cause: Exception | None = None) -> NoReturn:
        msg = f"{self._where(subject)} is not answered as by a schema registry ({why}): {_CHECK_URL}"
        raise RegistryError(msg) from cause

    def _refuse_amount(self, subject: str, what: str) -> NoReturn:
        msg = (
            f"{self._where(subject)} has {what}: reading them all would take long; delete versions of which "
            "no value is left, or pass schema_id and writers in format_options"
        )
        raise RegistryError(msg)

    def _raise_refusal(self, subject: object, error: Any) -> NoReturn:
        """Raise the error of an answer that is not a success."""
        status, text = error.http_status_code, str(error.error_message)[:_SHOWN]
        if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
            logins = {_LOGIN: self._settings.registry_login, _TOKEN: self._settings.registry_token}
            given = next((key for key, value in logins.items() if value), "")
            what = f"the login by {given}" if given else "requests without a login"
            advice = f"correct {given}" if given else f"set {_LOGIN} or {_TOKEN}"
            msg = (
                f"the schema registry {self.url} refuses {what} for subject {subject!r} ({status}): the ids "
                f"of schemas are not known; {advice}, or give this login the permission"
            )
        elif status >= http.HTTPStatus.INTERNAL_SERVER_ERROR or status in HTTP_BUSY:
            msg = (
                f"the schema registry {self.url} cannot answer now ({status} {text}): the ids of schemas are "
                "not known, so nothing was read or written; look at its log"
            )
            raise UnreachableRegistryError(msg) from error
        elif status == http.HTTPStatus.CONFLICT:
            msg = (
                f"{self._where(subject)} refuses the schema ({text}): readers of others would fail; "
                "change the columns so that its compatibility rule allows them, or write to another topic"
            )
        else:
            msg = f"{self._where(subject)} is answered with {status} ({text}): {_CHECK_URL}"
        raise RegistryError(msg) from error

    def _where(self, subject: object) -> str:
        return f"subject {subject!r} at the schema registry {self.url}"

    def _client_config(self) -> dict[str, Any]:
        settings = self._settings
        found: dict[str, Any] = {
            "url": self.url, "timeout": _TIMEOUT_S, "max.retries": _RETRIES, "retries.wait.ms": _RETRY_MS,
        }  # fmt: skip
        if settings.registry_ca is not None:
            found["ssl.ca.location"] = str(settings.registry_ca)
        if settings.registry_login:
            found["basic.auth.user.info"] = settings.registry_login
        if settings.registry_token:
            fields = dict.fromkeys(_CLOUD_FIELDS, "") | {"bearer.auth.token": settings.registry_token}
            found |= {
                "bearer.auth.credentials.source": "CUSTOM",
                "bearer.auth.custom.provider.function": lambda _config: fields,
                "bearer.auth.custom.provider.config": {},
            }
        return found


_CHECK_URL = "nothing was read or written; check schema-registry.url, which ends where /subjects begins"


def _checked_url(settings: Settings) -> str:
    """The address of the registry, after a check of all its settings."""
    url, login, token = settings.registry_url, settings.registry_login, settings.registry_token
    if not url:
        msg = (
            "schema-registry.url is not set, and a topic has the format avro-confluent without schema_id: "
            "the ids of its schemas are not known; set it, or pass schema_id in format_options"
        )
        raise SettingsError(msg)
    parts = urlsplit(url)
    if "," in url or not parts.hostname:
        msg = (
            f"schema-registry.url={url!r} is not one address: pass one, such as https://registry.example:8081"
        )
        raise SettingsError(msg)
    if login and token:
        msg = f"{_LOGIN} and {_TOKEN} are both set: one would have no effect; leave one out"
        raise SettingsError(msg)
    if login and not (login.partition(":")[0] and login.partition(":")[2]):
        msg = f"{_LOGIN} is not name:password: the registry would refuse the login; pass both, with a colon"
        raise SettingsError(msg)
    if not f"{login}{token}".isprintable():
        msg = f"{_LOGIN} or {_TOKEN} has a character that cannot be printed: the login would fail; correct it"
        raise SettingsError(msg)
    if (login or token) and parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        msg = (
            f"schema-registry.url={url!r} is not https: the login would be readable on its way; pass an "
            "https address"
        )
        raise SettingsError(msg)
    if settings.registry_ca is not None and not settings.registry_ca.is_file():
        msg = f"{_CA}={str(settings.registry_ca)!r} is not a file: no registry could be trusted; correct it"
        raise SettingsError(msg)
    return url.rstrip("/")


def _read_bounded(response: Any) -> None:
    """Read an answer before the client does, who would read one of any size.

    Raises:
        ValueError: It is too long.
    """
    # None was asked for; an answer that is packed all the same stays so, and is not JSON.
    response.headers.pop("Content-Encoding", None)
    parts, size = [], 0
    for part in response.iter_raw():
        parts.append(part)
        size += len(part)
        if size > _MOST_BYTES:
            msg = f"more than {_MOST_BYTES:,} bytes"
            raise ValueError(msg)
    response._content = b"".join(parts)  # noqa: SLF001 - as its own `read` does
