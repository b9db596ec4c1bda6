"""Security settings: contradictions are refused, the others are translated for each client."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from flowcore.errors import SettingsError
from flowcore.kafka.security import (
    BrokerAddress,
    Security,
    admin_login,
    client_login,
    spark_login,
    task_login,
)
from flowcore.settings import Settings
from flowcore.spark.context import broker_of
from pipelines.auctions.flow import bids

LOGIN = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": "ann", "password": "s3cret"}
TOKENS = {"mechanism": "OAUTHBEARER", "token_url": "https://a/token"}


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    """A file that is there."""
    path = tmp_path / "a.pem"
    path.write_text("-----BEGIN")
    return path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"protocol": "TLS"}, "'TLS' is not one of PLAINTEXT, SSL"),
        ({"username": "ann"}, "no effect.*is PLAINTEXT"),
        ({**LOGIN, "mechanism": "GSSAPI"}, "'GSSAPI' is not one of PLAIN"),
        ({**LOGIN, "mechanism": "OAUTHBEARER"}, "needs kafka.sasl.oauthbearer.token.endpoint.url"),
        ({**LOGIN, **TOKENS, "token_url": "http://a/token"}, "not https: the client secret"),
        ({**LOGIN, **TOKENS, "token_ca": Path("nowhere.pem")}, "'nowhere.pem' is not a file"),
        ({**LOGIN, "token_scope": "a"}, "oauthbearer.* has no effect"),
        ({"protocol": "SSL", "key_password": "s3cret"}, "key-password has no effect"),
        ({**LOGIN, "mechanism": None}, "None is not one of"),
        ({**LOGIN, "password": ""}, "is missing"),
        ({**LOGIN, "password": "s3cret\n"}, "cannot be printed"),
        ({"ca": Path("a.pem")}, "nothing would be encrypted"),
        ({"protocol": "SSL", "ca": Path("nowhere.pem")}, "'nowhere.pem' is not a file"),
        ({"protocol": "SSL", "key": Path("a.pem")}, "must be set together"),
    ],
    ids=[
        "protocol",
        "name",
        "mechanism",
        "no-issuer",
        "clear-issuer",
        "issuer-file",
        "no-token",
        "no-key",
        "none",
        "password",
        "newline",
        "plain-ca",
        "no-file",
        "half",
    ],
)
def test_security_that_does_not_fit_is_refused(given: dict[str, Any], message: str) -> None:
    """The error is raised before a client is created, and contains no password."""
    with pytest.raises(SettingsError, match=message) as raised:
        Security(**given)

    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("name", ["certificate", "key"])
@pytest.mark.parametrize("lines", [1, 50], ids=["short", "longer than a name can be"])
def test_key_instead_of_the_path_of_its_file_is_not_shown(name: str, lines: int, pem: Path) -> None:
    """Its text may come from a secret of the platform; a file of a certificate often has the key as well."""
    content = "-----BEGIN PRIVATE KEY-----\n" + "s3cret\n" * lines
    files = {"certificate": pem, "key": pem, name: Path(content)}
    with pytest.raises(SettingsError, match=f"ssl.{name} is not a file: pass the path") as raised:
        Security(protocol="SSL", **files)  # type: ignore[arg-type]

    assert "s3cret" not in str(raised.value)


def test_each_client_gets_its_own_options(pem: Path) -> None:
    """kafka-python, librdkafka and Java are configured; Java gets certificates as text."""
    address = BrokerAddress("a:1", Security(**LOGIN, ca=pem, certificate=pem, key=pem))  # type: ignore[arg-type]

    assert admin_login(address) == {
        "security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "ann",
        "sasl_plain_password": "s3cret", "ssl_cafile": str(pem), "ssl_certfile": str(pem),
        "ssl_keyfile": str(pem), "ssl_password": None,
    }  # fmt: skip
    assert client_login(address) == {
        "bootstrap.servers": "a:1", "security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "ann", "sasl.password": "s3cret", "ssl.ca.location": str(pem),
        "ssl.certificate.location": str(pem), "ssl.key.location": str(pem),
    }  # fmt: skip
    assert task_login(address) == {
        **{key: value for key, value in client_login(address).items() if ".location" not in key},
        "ssl.ca.pem": "-----BEGIN", "ssl.certificate.pem": "-----BEGIN", "ssl.key.pem": "-----BEGIN",
    }  # fmt: skip
    assert spark_login(address) == {
        "kafka.bootstrap.servers": "a:1", "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="s3cret";',
        "kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.certificates": "-----BEGIN",
        "kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.certificate.chain": "-----BEGIN",
        "kafka.ssl.keystore.key": "-----BEGIN",
    }  # fmt: skip


def test_tokens_are_asked_for_by_each_client(pem: Path) -> None:
    """Each client is given the issuer, and none the client secret as a password of the broker."""
    security = Security(**{**LOGIN, **TOKENS, "token_scope": "w", "token_ca": pem})  # type: ignore[arg-type]
    address = BrokerAddress("a:1", security)
    login = spark_login(address)

    assert admin_login(address)["sasl_plain_password"] is None
    assert client_login(address) == {
        "bootstrap.servers": "a:1", "security.protocol": "sasl_ssl", "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.client.id": "ann",
        "sasl.oauthbearer.client.secret": "s3cret", "sasl.oauthbearer.scope": "w",
        "sasl.oauthbearer.token.endpoint.url": "https://a/token", "https.ca.location": str(pem),
    }  # fmt: skip
    assert task_login(address)["https.ca.pem"] == "-----BEGIN"
    assert login["kafka.sasl.oauthbearer.token.endpoint.url"] == "https://a/token"
    assert login["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'password="" clientId="ann" clientSecret="s3cret" scope="w" ssl.truststore.type="PEM" '
        'ssl.truststore.certificates="-----BEGIN";'
    )


@pytest.mark.parametrize("more", [{}, TOKENS], ids=["password", "client secret"])
@pytest.mark.parametrize("secret", ["s3cret", 's3cret"\\', 's3cret password=""'])
def test_login_is_hidden_where_executors_log_it(more: dict[str, str], secret: str) -> None:
    """Spark's `KafkaRedactionUtil` knows one name of a secret, and replaces text by this pattern."""
    security = Security(**{**LOGIN, **more, "password": secret})  # type: ignore[arg-type]
    login = spark_login(BrokerAddress("a:1", security))["kafka.sasl.jaas.config"]

    assert "s3cret" in login
    assert "s3cret" not in re.sub('password=".*"', 'password="[hidden]"', login)


def test_encrypted_key_is_given_to_java_without_its_encryption(tmp_path: Path) -> None:
    """Java 17 cannot read it; a wrong password is refused without being shown."""
    secret = rsa.generate_private_key(65537, 2048)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encryption = serialization.BestAvailableEncryption(b"s3cret")
    key = tmp_path / "key.pem"
    key.write_bytes(secret.private_bytes(pem, form, encryption))
    security = Security(protocol="SSL", certificate=key, key=key, key_password="s3cret")  # noqa: S106

    found = spark_login(BrokerAddress("a:1", security))["kafka.ssl.keystore.key"]
    assert found.encode() == secret.private_bytes(pem, form, serialization.NoEncryption())
    with pytest.raises(SettingsError, match=r"key\.pem' cannot be decrypted") as raised:
        spark_login(BrokerAddress("a:1", replace(security, key_password="gu3ss")))  # noqa: S106
    assert "gu3ss" not in str(raised.value)


def test_plain_address_changes_nothing() -> None:
    """Without security settings the clients keep their defaults."""
    assert client_login("a:1") == {"bootstrap.servers": "a:1", "security.protocol": "plaintext"}
    assert spark_login("a:1") == {"kafka.bootstrap.servers": "a:1"}


@given(password=st.text(st.sampled_from('ab"\\;= é'), min_size=1))
def test_password_cannot_leave_its_quotes(password: str) -> None:
    """Special characters are quoted and do not become options of Kafka."""
    login = spark_login(BrokerAddress("a:1", Security(**{**LOGIN, "password": password})))  # type: ignore[arg-type]
    _, _, rest = login["kafka.sasl.jaas.config"].partition(' password="')
    found, at = "", 0
    while rest[at] != '"':
        at += rest[at] == "\\"
        found += rest[at]
        at += 1

    assert found == password
    assert rest[at:] == '";'


def test_password_is_not_shown() -> None:
    """Neither settings nor derived options show it."""
    settings = Settings.of({"kafka.sasl.password": "s3cret"}, environment={})
    address = BrokerAddress("a:1", Security(**LOGIN))  # type: ignore[arg-type]

    assert "s3cret" not in f"{settings} {address!r} {address} {address.security}"


def test_login_is_for_the_broker_of_the_settings_only() -> None:
    """A topic with its own broker does not get the password."""
    given = {
        "kafka.bootstrap.servers": "a:1", "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "ann", "kafka.sasl.password": "s3cret",
    }  # fmt: skip
    settings = Settings.of(given, environment={})
    topic = bids.operator.source  # type: ignore[union-attr]
    elsewhere = type(topic)("bids", schema="id BIGINT", servers="b:1")

    assert client_login(broker_of(topic, settings))["sasl.password"] == "s3cret"
    assert client_login(broker_of(elsewhere, settings)) == client_login("b:1")
