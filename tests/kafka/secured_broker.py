"""A real broker with a listener for each way to authenticate, and an issuer of tokens, for tests.

All listeners belong to one broker, so that a test of another mechanism does not start another broker. The
listeners differ in name, port and certificate. A client of PLAINTEXT, or of SSL without a certificate, may do
everything; a user that logs in may do what the ACLs say.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import parse_qs

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from flowcore.kafka import broker
from flowcore.kafka.broker import EmbeddedBroker, free_port
from flowcore.testing.kafka_fixtures import new_kafka_broker

__all__ = [
    "BOB_PASSWORD", "CLIENT_ID", "KEY_PASSWORD", "PASSWORD", "USER", "WAYS", "Certificates", "SecuredBroker",
    "secured_broker", "secured_container",
]  # fmt: skip

USER: Final = "ann"
PASSWORD: Final = 'p"4\\ss'  # noqa: S105 - ends with the tests
CLIENT_ID: Final = "flow"
BOB_PASSWORD: Final = "bobs"  # noqa: S105 - ends with the tests
KEY_PASSWORD: Final = "k3y p"  # noqa: S105 - ends with the tests
WAYS: Final = {
    "tls": ("SSL", None),
    "mutual": ("MUTUAL", None),
    "mutual, encrypted key": ("MUTUAL", None),
    "plain": ("LOGIN", "PLAIN"),
    "scram-256": ("LOGIN", "SCRAM-SHA-256"),
    "scram-512": ("LOGIN", "SCRAM-SHA-512"),
    "oauthbearer": ("LOGIN", "OAUTHBEARER"),
    "clear": ("CLEAR", "PLAIN"),
}
"""Listener and mechanism by the way to authenticate."""
_LISTENERS: Final = {
    "SSL": "SSL", "MUTUAL": "SSL", "EXPIRED": "SSL", "ELSEWHERE": "SSL", "LOGIN": "SASL_SSL",
    "CLEAR": "SASL_PLAINTEXT",
}  # fmt: skip
_JAVA: Final = "org.apache.kafka.common.security"
_URLS: Final = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls="
_IN_CONTAINER: Final = "/etc/kafka/secrets"
_FIRST_PORT: Final = 9101
"""Of the listeners within a container."""
_PROPERTIES: Final = """
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map={protocols}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS;User:{user};User:CN=client;User:{client_id}
allow.everyone.if.no.acl.found=false
ssl.keystore.type=PEM
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
ssl.keystore.location={folder}/broker.both.pem
listener.name.mutual.ssl.client.auth=required
listener.name.mutual.ssl.keystore.type=PEM
listener.name.mutual.ssl.keystore.location={folder}/broker.both.pem
listener.name.mutual.ssl.truststore.type=PEM
listener.name.mutual.ssl.truststore.location={folder}/ca.pem
listener.name.expired.ssl.keystore.type=PEM
listener.name.expired.ssl.keystore.location={folder}/expired.both.pem
listener.name.elsewhere.ssl.keystore.type=PEM
listener.name.elsewhere.ssl.keystore.location={folder}/elsewhere.both.pem
{logins}
listener.name.login.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.clear.sasl.enabled.mechanisms=PLAIN
listener.name.login.oauthbearer.sasl.jaas.config={java}.oauthbearer.OAuthBearerLoginModule required;
listener.name.login.oauthbearer.sasl.server.callback.handler.class={java}.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwks.endpoint.url=file://{folder}/keys.json
sasl.oauthbearer.expected.audience=kafka
"""


class Certificates:
    """An authority, and what it has signed, as PEM files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("ca", "other"):
            self._run(
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                "-keyout", self.path(f"{name}.key"), "-out", self.path(name),
            )  # fmt: skip
        here = "subjectAltName=IP:127.0.0.1,DNS:localhost"
        self._sign("broker", here)
        self._sign("expired", here, days="-1")
        self._sign("elsewhere", "subjectAltName=DNS:kafka.example")
        self._sign("client", "extendedKeyUsage=clientAuth")
        self._sign("stranger", "extendedKeyUsage=clientAuth", authority="other")
        self._run(
            "pkcs8", "-topk8", "-in", self.path("client.key"), "-out", self.path("client.locked"),
            "-passout", f"pass:{KEY_PASSWORD}",
        )  # fmt: skip

    def path(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")

    def _sign(self, name: str, extension: str, *, days: str = "2", authority: str = "ca") -> None:
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(extension)
        self._run(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.request"),
        )  # fmt: skip
        self._run(
            "x509", "-req", "-days", days, "-in", self.path(f"{name}.request"), "-CAcreateserial",
            "-CA", self.path(authority), "-CAkey", self.path(f"{authority}.key"),
            "-extfile", str(extensions), "-out", self.path(name),
        )  # fmt: skip
        both = [(self.folder / f"{name}{part}.pem").read_text() for part in (".key", "")]
        (self.folder / f"{name}.both.pem").write_text("".join(both))

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class _Issuer(ThreadingHTTPServer):
    """Issues signed tokens to the one client that it knows, over HTTPS."""

    daemon_threads = True

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(("127.0.0.1", 0), _TokenRequest)
        self.key = certificates.folder / "broker.key.pem"
        self.issued = 0
        self.lifetime_s = 3600
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.folder / "broker.both.pem")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        modulus = subprocess.run(
            ["openssl", "rsa", "-in", str(self.key), "-noout", "-modulus"],
            check=True, capture_output=True, text=True,
        ).stdout.strip().partition("=")[2]  # fmt: skip
        key = {"kty": "RSA", "kid": "1", "use": "sig", "alg": "RS256", "e": "AQAB"}
        keys = {"keys": [{**key, "n": _base64(bytes.fromhex(modulus))}]}
        (certificates.folder / "keys.json").write_text(json.dumps(keys))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_address[1]}/token"

    def token(self, scope: str) -> str:
        now_s = int(time.time())
        claims = {
            "sub": CLIENT_ID,
            "aud": "kafka",
            "iat": now_s,
            "exp": now_s + self.lifetime_s,
            "scope": scope,
        }
        parts = [{"alg": "RS256", "kid": "1", "typ": "JWT"}, claims]
        signed = ".".join(_base64(json.dumps(part).encode()) for part in parts)
        signature = subprocess.run(
            ["openssl", "dgst", "-sha256", "-sign", str(self.key)],
            input=signed.encode(), check=True, capture_output=True,
        ).stdout  # fmt: skip
        self.issued += 1
        return f"{signed}.{_base64(signature)}"


class _TokenRequest(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, _Issuer)
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        login = base64.b64encode(f"{CLIENT_ID}:{PASSWORD}".encode()).decode()
        known = self.headers["Authorization"] == f"Basic {login}"
        if known and form["grant_type"] == ["client_credentials"]:
            scope = "".join(form.get("scope", []))
            found: dict[str, Any] = {"access_token": self.server.token(scope), "token_type": "bearer"}
            found |= {"expires_in": self.server.lifetime_s}
        else:
            found = {"error": "invalid_client", "error_description": "no such client"}
        content = json.dumps(found).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


class SecuredBroker:
    """A started broker, and the settings of a run by the way to authenticate."""

    def __init__(
        self, certificates: Certificates, plain: str, ports: Mapping[str, int], issuer: _Issuer
    ) -> None:
        self.certificates = certificates
        self.plain = plain
        self.issuer = issuer
        self._ports = ports

    def settings(self, way: str) -> dict[str, str]:
        """The settings of a run.

        Args:
            way: A key of `WAYS`, or ``EXPIRED`` or ``ELSEWHERE`` for a broker with such a certificate.
        """
        listener, mechanism = WAYS.get(way, (way, None))
        protocol, files = _LISTENERS[listener], self.certificates
        found = {
            "kafka.bootstrap.servers": f"127.0.0.1:{self._ports[listener]}",
            "kafka.security.protocol": protocol,
        }
        if "SSL" in protocol:
            found["kafka.ssl.ca"] = files.path("ca")
        if mechanism is not None:
            found |= {"kafka.sasl.mechanism": mechanism, "kafka.sasl.password": PASSWORD}
            found["kafka.sasl.username"] = USER
        if mechanism == "OAUTHBEARER":
            found["kafka.sasl.username"] = CLIENT_ID
            found["kafka.sasl.oauthbearer.token.endpoint.url"] = self.issuer.url
            found["kafka.sasl.oauthbearer.ca"] = files.path("ca")
            found["kafka.sasl.oauthbearer.scope"] = "kafka:write"
        if listener == "MUTUAL":
            found |= {
                "kafka.ssl.certificate": files.path("client"),
                "kafka.ssl.key": files.path("client.key"),
            }
        if way == "mutual, encrypted key":
            found |= {"kafka.ssl.key": files.path("client.locked"), "kafka.ssl.key-password": KEY_PASSWORD}
        return found


@contextmanager
def secured_broker(folder: Path) -> Iterator[SecuredBroker]:
    """Start the broker, as a process, and the issuer."""
    ports, plain = _free_ports(), "{host}:{port}"  # which the broker puts in
    secured = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    listeners = {"PLAINTEXT": plain, "CONTROLLER": "{host}:{controller_port}", **secured}
    more = _properties(str(folder), listeners, {"PLAINTEXT": plain, **secured})
    with _issuing(folder) as (certificates, issuer), pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "_PROPERTIES", broker._PROPERTIES + more)
        patch.setattr(broker, "_JAVA_OPTIONS", (*broker._JAVA_OPTIONS, f"{_URLS}file://{folder}/keys.json"))
        with EmbeddedBroker() as started:
            _add_scram_user(started.bootstrap_servers)
            yield SecuredBroker(certificates, started.bootstrap_servers, ports, issuer)


@contextmanager
def secured_container(folder: Path) -> Iterator[SecuredBroker]:
    """Start the broker in a container, and the issuer."""
    ports = _free_ports()
    inner = {name: _FIRST_PORT + number for number, name in enumerate(ports)}
    own = {"INTERNAL": "localhost:9095", "CONTROLLER": "localhost:9093"}
    with _issuing(folder) as (certificates, issuer):
        container = new_kafka_broker()
        published = {f"{inner[name]}/tcp": ("127.0.0.1", port) for name, port in ports.items()}
        container.ports |= cast("dict[str, int | None]", published)  # Docker's client also accepts hosts
        listeners = {"PLAINTEXT": ":9092", **own, **{name: f":{port}" for name, port in inner.items()}}
        advertised = {
            "PLAINTEXT": container.bootstrap_servers, "INTERNAL": own["INTERNAL"],
            **{name: f"127.0.0.1:{port}" for name, port in ports.items()},
        }  # fmt: skip
        more = "inter.broker.listener.name=INTERNAL\n" + _properties(_IN_CONTAINER, listeners, advertised)
        container.with_properties(more)
        for file in ("ca.pem", "broker.both.pem", "expired.both.pem", "elsewhere.both.pem", "keys.json"):
            container.with_copy_into_container((folder / file).read_bytes(), f"{_IN_CONTAINER}/{file}")
        options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_URLS}file://{_IN_CONTAINER}/keys.json"
        container.with_env("KAFKA_JVM_PERFORMANCE_OPTS", options)
        with container:
            _add_scram_user(container.bootstrap_servers)
            yield SecuredBroker(certificates, container.bootstrap_servers, ports, issuer)


@contextmanager
def _issuing(folder: Path) -> Iterator[tuple[Certificates, _Issuer]]:
    """Make certificates and start the issuer."""
    certificates = Certificates(folder)
    issuer = _Issuer(certificates)
    threading.Thread(target=issuer.serve_forever, daemon=True).start()
    try:
        yield certificates, issuer
    finally:
        issuer.shutdown()
        issuer.server_close()


def _properties(folder: str, listeners: Mapping[str, str], advertised: Mapping[str, str]) -> str:
    """The server properties for listeners with these addresses, and the files in a folder."""
    plain_users = f'user_{USER}="{_escaped(PASSWORD)}" user_bob="{BOB_PASSWORD}"'
    logins = [
        f"listener.name.{name}.plain.sasl.jaas.config={_JAVA}.plain.PlainLoginModule required {plain_users};"
        for name in ("login", "clear")
    ] + [
        f"listener.name.login.scram-sha-{bits}.sasl.jaas.config={_JAVA}.scram.ScramLoginModule required;"
        for bits in (256, 512)
    ]
    return _PROPERTIES.format(
        listeners=",".join(f"{name}://{address}" for name, address in listeners.items()),
        advertised=",".join(f"{name}://{address}" for name, address in advertised.items()),
        protocols=",".join(f"{name}:{_LISTENERS.get(name, 'PLAINTEXT')}" for name in listeners),
        logins="\n".join(logins).replace("\\", "\\\\"),
        folder=folder, java=_JAVA, user=USER, client_id=CLIENT_ID,
    )  # fmt: skip


def _free_ports() -> dict[str, int]:
    ports: set[int] = set()
    while len(ports) < len(_LISTENERS):
        ports.add(free_port())
    return dict(zip(_LISTENERS, ports, strict=True))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _add_scram_user(servers: str) -> None:
    client = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        info = ScramCredentialInfo(mechanism, 4096)
        added = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        for answer in client.alter_user_scram_credentials([added]).values():
            answer.result(20)
