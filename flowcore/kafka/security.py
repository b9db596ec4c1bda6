"""Security of a broker connection: login and encryption as settings of each Kafka client.

Only these settings can be set. A user's text is always a value: it cannot add a login module, a callback or a
configuration provider.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, NoReturn, Self, get_args

from flowcore.errors import SettingsError
from flowcore.settings import Settings

__all__ = [
    "BrokerAddress",
    "Mechanism",
    "Protocol",
    "Security",
    "admin_login",
    "client_login",
    "spark_login",
    "task_login",
]

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

_JAVA = "org.apache.kafka.common.security"
_LOGIN_MODULES = {
    "PLAIN": f"{_JAVA}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_JAVA}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_JAVA}.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Login and encryption of connections to a broker.

    Attributes:
        protocol: SSL: encrypted; SASL: with login name and password.
        ca: PEM file of the authorities trusted to sign the broker's certificate; default: the system's.
        certificate: PEM file of the client's certificate, if the broker requires one.
        key: PEM file of the client's private key (PKCS 8, not encrypted).

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

    def _check_files(self) -> None:
        files = {"ca": self.ca, "certificate": self.certificate, "key": self.key}
        if "SSL" not in self.protocol and any(files.values()):
            _refuse("kafka.ssl.* has no effect: nothing would be encrypted", self.protocol)
        if (self.certificate is None) != (self.key is None):
            _refuse("kafka.ssl.certificate and kafka.ssl.key must be set together")
        for name, path in files.items():
            if path is not None and not path.is_file():
                _refuse(f"kafka.ssl.{name}={str(path)!r} is not a file")


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
    """Security settings of kafka-python for a broker."""
    security = _security(address)
    return {
        "security_protocol": security.protocol,
        "sasl_mechanism": security.mechanism,
        "sasl_plain_username": security.username,
        "sasl_plain_password": security.password,
        "ssl_cafile": _text(security.ca),
        "ssl_certfile": _text(security.certificate),
        "ssl_keyfile": _text(security.key),
    }


def client_login(address: str) -> dict[str, str]:
    """Address and security settings of librdkafka for a broker."""
    security = _security(address)
    found = {
        "bootstrap.servers": str(address),
        "security.protocol": security.protocol.lower(),
        "sasl.mechanisms": security.mechanism,
        "sasl.username": security.username,
        "sasl.password": security.password,
        "ssl.ca.location": _text(security.ca),
        "ssl.certificate.location": _text(security.certificate),
        "ssl.key.location": _text(security.key),
    }
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
    security = _security(address)
    found = {"kafka.bootstrap.servers": str(address)}
    if security.protocol != "PLAINTEXT":
        found["kafka.security.protocol"] = security.protocol
    if security.mechanism is not None:
        found["kafka.sasl.mechanism"] = security.mechanism
        found["kafka.sasl.jaas.config"] = (
            f"{_LOGIN_MODULES[security.mechanism]} required "
            f"username={_quoted(security.username)} password={_quoted(security.password)};"
        )
    if security.ca is not None:
        found["kafka.ssl.truststore.type"] = "PEM"
        found["kafka.ssl.truststore.certificates"] = security.ca.read_text()
    if security.certificate is not None and security.key is not None:
        found["kafka.ssl.keystore.type"] = "PEM"
        found["kafka.ssl.keystore.certificate.chain"] = security.certificate.read_text()
        found["kafka.ssl.keystore.key"] = security.key.read_text()
    return found


def _security(address: str) -> Security:
    return address.security if isinstance(address, BrokerAddress) else Security()


def _quoted(text: str | None) -> str:
    escaped = (text or "").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _refuse(why: str, protocol: str | None = None) -> NoReturn:
    msg = f"{why}; kafka.security.protocol is {protocol}" if protocol else why
    raise SettingsError(msg)
