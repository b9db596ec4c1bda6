"""The issuer of tokens gets the client secret, and nobody else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from flowcore.errors import BrokerAccessError, BrokerError, UnreachableBrokerError
from flowcore.kafka import tokens
from flowcore.kafka.security import Security
from flowcore.kafka.tokens import fetch_token

SECRET = "canary4711"  # noqa: S105 - of a test


@contextmanager
def _answering(status: int, body: bytes = b"", location: str = "") -> Iterator[tuple[str, list[str]]]:
    """A server on loopback that answers everything so: its address, and the headers that it gets."""
    headers: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers.append(str(self.headers))
            self.send_response(status)
            self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST  # noqa: N815 - names of the library

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/token", headers
        finally:
            server.shutdown()
            thread.join()


def _login(address: str) -> Security:
    return Security(
        protocol="SASL_SSL", mechanism="OAUTHBEARER", username="flow", password=SECRET, token_url=address
    )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_of_an_issuer_is_not_followed(status: int) -> None:
    """Python would send the header with the client secret along, also to a host without TLS."""
    with (
        _answering(200, b'{"access_token":"x"}') as (elsewhere, stolen),
        _answering(status, location=elsewhere) as (address, asked),
        pytest.raises(BrokerAccessError) as refused,
    ):
        fetch_token(_login(address))

    assert len(asked) == 1
    assert stolen == []
    assert f"answers {status}" in str(refused.value)
    assert "pass the address that it redirects to" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[]",
        b"{}",
        b"<html>",
        b'{"access_token":"x","expires_in":[]}',
        b'{"access_token":"x","expires_in":1%s}' % (b"0" * 400),
        b'{"access_token":"x","expires_in":NaN}',
        b'{"access_token":"x","expires_in":1e999}',
        b'{"access_token":null}',
        b'{"access_token":""}',
        b'{"access_token":{"a":1}}',
        b'{"access_token":"x\\u0001host=evil"}',
    ],
    ids=lambda body: body.decode()[:40],
)
def test_answer_that_is_not_a_token_is_one_line(body: bytes) -> None:
    """This holds whatever the issuer sends."""
    with _answering(200, body) as (address, _), pytest.raises(BrokerAccessError, match="gives no token"):
        fetch_token(_login(address))


@contextmanager
def _sending(*parts: bytes, repeat: bytes = b"") -> Iterator[str]:
    """A server on loopback that sends these bytes, and then others again and again: its address."""
    ended = threading.Event()

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"".join(parts))
                while repeat and not ended.wait(0.01):
                    connection.sendall(repeat)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/token"
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"HTTP/1.1 400 " + b"a" * 60_000 + b"\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["not HTTP", "long header", "bad chunk", "long reason"],
)
def test_answer_that_is_not_http_is_a_short_error(answer: bytes) -> None:
    """It is none of Python's HTTP client, which has a traceback."""
    with _sending(answer) as address, pytest.raises(BrokerError, match="gives no token") as refused:
        fetch_token(_login(address))

    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    ("begin", "repeat"),
    [(b"HTTP/1.1 200 OK\r\n\r\n", b" "), (b"HTTP/1.1 200 OK\r\nX: ", b"a")],
    ids=["body", "header"],
)
def test_answer_that_trickles_ends(begin: bytes, repeat: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait for some bytes is long, and the whole answer would take hours."""
    monkeypatch.setattr(tokens, "_LIMIT_S", 0.3)
    with (
        _sending(begin, repeat=repeat) as address,
        pytest.raises(UnreachableBrokerError, match=r"no whole answer in 0\.3 s"),
    ):
        fetch_token(_login(address))


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_issuer_that_cannot_answer_now_is_an_outage(status: int) -> None:
    """A live run waits for the end of one; a refusal ends it."""
    with (
        _answering(status) as (address, _),
        pytest.raises(UnreachableBrokerError, match=f"answers {status}"),
    ):
        fetch_token(_login(address))


def test_tls_that_an_issuer_breaks_off_is_an_outage() -> None:
    """A proxy whose server is away closes the connection after the first message."""
    with _sending() as address, pytest.raises(UnreachableBrokerError, match="gives no token"):
        fetch_token(_login(address.replace("http://", "https://")))


def test_issuer_that_is_not_trusted_is_not_an_outage() -> None:
    """It answers, and not in TLS that can be accepted."""
    with (
        _sending(b"HTTP/1.1 400 no\r\n\r\n") as address,
        pytest.raises(BrokerAccessError, match=r"oauthbearer\.ca"),
    ):
        fetch_token(_login(address.replace("http://", "https://")))
