"""Security of a broker connection: login and encryption as settings of each Kafka client.

Only these settings can be set. A user's text is always a value: it cannot add a login module, a callback or a
configuration provider.
"""

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, NoReturn, Self, get_args
from urllib.parse import urlsplit

from flowcore.errors import InstallationError, SettingsError
from flowcore.settings import Settings

__all__ = [
    "TOKENS",
    "BrokerAddress",
    "Mechanism",
    "Protocol",
    "Security",
    "admin_login",
    "client_login",
    "security_of",
    "spark_login",
    "task_login",
]

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

_JAVA = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_JAVA}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_JAVA}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_JAVA}.scram.ScramLoginModule",
    "OAUTHBEARER": f"{_JAVA}.oauthbearer.OAuthBearerLoginModule",
}
TOKENS = "OAUTHBEARER"
"""The mechanism whose logins are tokens of an issuer."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Login and encryption of connections to a broker.

    Attributes:
        protocol: SSL: encrypted; SASL: with login name and password.
        username: Login name; with OAUTHBEARER the client id.
        password: Password; with OAUTHBEARER the client secret.
        ca: PEM file of the authorities trusted to sign the broker's certificate; default: the system's.
        certificate: PEM file of the client's certificate, if the broker requires one.
        key: PEM file of the client's private key (PKCS 8).
        key_password: Password of the private key, if it is encrypted.
        token_url: With OAUTHBEARER, where the issuer gives tokens for client credentials.
        token_scope: The scope that is asked for, if the issuer needs one.
        token_ca: PEM file of the authorities trusted to sign the issuer's certificate; default: the system's.

    Raises:
        SettingsError: A setting is missing, or would have no effect.
    """

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    key_password: str | None = field(default=None, repr=False)
    token_url: str | None = None
    token_scope: str | None = None
    token_ca: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The security in the settings of a run."""
        return cls(**{each.name: getattr(settings, f"kafka_{each.name}") for each in fields(cls)})

    def __post_init__(self) -> None:
        if self.protocol not in get_args(Protocol):
            _refuse(
                f"kafka.security.protocol={self.protocol!r} is not one of {', '.join(get_args(Protocol))}"
            )
        self._check_login()
        self._check_issuer()
        self._check_files()

    def _check_login(self) -> None:
        login = (self.mechanism, self.username, self.password)
        if "SASL" not in self.protocol:
            if any(login):
                _refuse("kafka.sasl.* has no effect: the broker would not ask for a login", self.protocol)
            return
        if self.mechanism not in get_args(Mechanism):
            _refuse(f"kafka.sasl.mechanism={self.mechanism!r} is not one of {', '.join(get_args(Mechanism))}")
        if not (self.username and self.password):
            _refuse(
                "kafka.sasl.username or kafka.sasl.password is missing: the broker would refuse the login",
                self.protocol,
            )
        if not f"{self.username}{self.password}".isprintable():
            _refuse("kafka.sasl.username or kafka.sasl.password has a character that cannot be printed")

    def _check_issuer(self) -> None:
        if self.mechanism != TOKENS:
            if self.token_url or self.token_scope or self.token_ca:
                _refuse(
                    "kafka.sasl.oauthbearer.* has no effect: no token would be asked for; pass "
                    f"kafka.sasl.mechanism={TOKENS}, or leave it out"
                )
            return
        if not self.token_url:
            _refuse(
                f"kafka.sasl.mechanism={TOKENS} needs kafka.sasl.oauthbearer.token.endpoint.url, where the "
                "issuer gives tokens: there would be nothing to log in with"
            )
        url = urlsplit(self.token_url)
        if url.scheme != "https" and url.hostname not in _LOOPBACK:
            _refuse(
                f"kafka.sasl.oauthbearer.token.endpoint.url={self.token_url!r} is not https: the client "
                "secret would be readable on its way; pass an https address"
            )
        if self.token_ca is not None and not self.token_ca.is_file():
            _refuse(f"kafka.sasl.oauthbearer.ca={str(self.token_ca)!r} is not a file")

    def _check_files(self) -> None:
        files = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        if "SSL" not in self.protocol and any(files.values()):
            _refuse("kafka.ssl.* has no effect: nothing would be encrypted", self.protocol)
        if (self.certificate is None) != (self.key is None):
            _refuse("kafka.ssl.certificate and kafka.ssl.key must be set together")
        if self.key is None and self.key_password:
            _refuse("kafka.ssl.key-password has no effect: kafka.ssl.key is not set")
        for name, path in files.items():
            if path is not None and not os.path.isfile(path):  # noqa: PTH113 - false for any text
                # What names no file may be the key itself.
                shown = f"={str(path)!r}" if name == "ca" or os.path.exists(path) else ""  # noqa: PTH110
                _refuse(
                    f"kafka.ssl.{name}{shown} is not a file: pass the path of a PEM file, not its content"
                )


class BrokerAddress(str):
    """An address of a broker, ``host:port[,host:port]``, with the security of connections to it.

    It is a `str` like any other address, and does not show the password.
    """

    __slots__ = ("security",)

    def __new__(cls, address: str, security: Security) -> Self:
        made = super().__new__(cls, address)
        made.security = security
        return made

    security: Security


def admin_login(address: str) -> dict[str, str | None]:
    """Security settings of kafka-python for a broker, without a token."""
    security = security_of(address)
    by_name = security.mechanism != TOKENS
    return {
        "security_protocol": security.protocol,
        "sasl_mechanism": security.mechanism,
        "sasl_plain_username": security.username if by_name else None,
        "sasl_plain_password": security.password if by_name else None,
        "ssl_cafile": _text(security.ca),
        "ssl_certfile": _text(security.certificate),
        "ssl_keyfile": _text(security.key),
        "ssl_password": security.key_password,
    }


def client_login(address: str) -> dict[str, str]:
    """Address and security settings of librdkafka for a broker."""
    security = security_of(address)
    found = {
        "bootstrap.servers": str(address),
        "security.protocol": security.protocol.lower(),
        "sasl.mechanisms": security.mechanism,
        "ssl.ca.location": _text(security.ca),
        "ssl.certificate.location": _text(security.certificate),
        "ssl.key.location": _text(security.key),
        "ssl.key.password": security.key_password,
    }
    if security.mechanism == TOKENS:
        found |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": security.username,
            "sasl.oauthbearer.client.secret": security.password,
            "sasl.oauthbearer.token.endpoint.url": security.token_url,
            "sasl.oauthbearer.scope": security.token_scope,
            "https.ca.location": _text(security.token_ca),
        }
    else:
        found |= {"sasl.username": security.username, "sasl.password": security.password}
    return {key: value for key, value in found.items() if value is not None}


def task_login(address: str) -> dict[str, str]:
    """As `client_login`, for the tasks of a cluster: with certificates as text, since they have no files."""
    found = client_login(address)
    files = {key: value for key, value in found.items() if key.endswith(".location")}
    texts = {key.replace(".location", ".pem"): Path(value).read_text() for key, value in files.items()}
    return {key: value for key, value in found.items() if key not in files} | texts


def spark_login(address: str) -> dict[str, str]:
    """Address and security settings of Spark's Kafka source and sink for a broker.

    Certificates are passed as text, so that the machines of a cluster do not need the files.
    """
    security = security_of(address)
    found = {"kafka.bootstrap.servers": str(address)}
    if security.protocol != "PLAINTEXT":
        found["kafka.security.protocol"] = security.protocol
    if security.mechanism is not None:
        found["kafka.sasl.mechanism"] = security.mechanism
        found["kafka.sasl.jaas.config"] = _jaas(security, _LOGIN_MODULES[security.mechanism])
    if security.mechanism == TOKENS:
        found["kafka.sasl.login.callback.handler.class"] = (
            f"{_JAVA}.oauthbearer.OAuthBearerLoginCallbackHandler"
        )
        found["kafka.sasl.oauthbearer.token.endpoint.url"] = security.token_url or ""
    if security.ca is not None:
        found["kafka.ssl.truststore.type"] = "PEM"
        found["kafka.ssl.truststore.certificates"] = security.ca.read_text()
    if security.certificate is not None and security.key is not None:
        found["kafka.ssl.keystore.type"] = "PEM"
        found["kafka.ssl.keystore.certificate.chain"] = security.certificate.read_text()
        found["kafka.ssl.keystore.key"] = _plain_key(security.key, security.key_password)
    return found


def _plain_key(key: Path, password: str | None) -> str:
    """A private key as text without its password: Java 17 cannot read today's encryption of keys (PBES2)."""
    if password is None:
        return key.read_text()
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - most keys are not encrypted
    except ImportError as error:
        msg = (
            "kafka.ssl.key-password is set and the package cryptography is not installed: Java could not "
            "read the key; run: pip install 'flowcore[encrypted-keys]'"
        )
        raise InstallationError(msg) from error
    try:
        found = serialization.load_pem_private_key(key.read_bytes(), password.encode())
    except (ValueError, TypeError) as error:  # its texts do not have the password
        _refuse(f"kafka.ssl.key={str(key)!r} cannot be decrypted with kafka.ssl.key-password ({error})")
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return found.private_bytes(pem, form, serialization.NoEncryption()).decode()


def _jaas(security: Security, module: str) -> str:
    """The login of Java's client; only the values are the user's."""
    options = {"username": security.username, "password": security.password}
    if security.mechanism == TOKENS:
        # Executors log this at DEBUG, and Spark hides only what is between `password="` and the last quote.
        options = {"password": "", "clientId": security.username, "clientSecret": security.password}
        if security.token_scope is not None:
            options["scope"] = security.token_scope
        if security.token_ca is not None:
            options["ssl.truststore.type"] = "PEM"
            options["ssl.truststore.certificates"] = security.token_ca.read_text()
    texts = (f"{name}={_quoted(value)}" for name, value in options.items())
    return f"{module} required {' '.join(texts)};"


def security_of(address: str) -> Security:
    """The security of connections to a broker; none for an address that is only text."""
    return address.security if isinstance(address, BrokerAddress) else Security()


def _quoted(text: str | None) -> str:
    escaped = (text or "").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _refuse(why: str, protocol: str | None = None) -> NoReturn:
    msg = f"{why}; kafka.security.protocol is {protocol}" if protocol else why
    raise SettingsError(msg)
