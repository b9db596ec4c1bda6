"""A schema registry that answers too much, too slowly or wrongly: an error, soon, in little memory."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from flowcore.errors import RegistryError, UnreachableRegistryError
from flowcore.kafka import schema_registry
from flowcore.kafka.schema_registry import SchemaRegistry, SchemaVersion
from flowcore.settings import Settings

VERSION = {"subject": "bids", "version": 1, "id": 7, "schema": '"int"'}


@contextmanager
def _registry(
    *,
    numbers: Any = (1,),
    version: Any = VERSION,
    send: Callable[[Any], None] | None = None,
    packed: bool = False,
    status: int = 200,
) -> Iterator[SchemaRegistry]:
    """A registry on loopback with these answers, or whose answers a function sends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            if send is not None:
                self.end_headers()
                with suppress(OSError):
                    send(self.wfile)
                return
            is_list = self.path.partition("?")[0].endswith("/versions")
            body = json.dumps(numbers if is_list else version).encode()
            body = gzip.compress(body) if packed else body
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            with SchemaRegistry(Settings.of({"schema-registry.url": url}, environment={})) as registry:
                yield registry
        finally:
            server.shutdown()
            thread.join()


def test_versions_are_read() -> None:
    """This is an answer as it should be."""
    with _registry() as registry:
        assert registry.versions("bids") == (SchemaVersion(1, 7, '"int"'),)


@pytest.mark.parametrize(
    "answers",
    [
        {"numbers": 5},
        {"numbers": [1, "a"]},
        {"numbers": {"a": 1}},
        {"numbers": [1.5]},
        {"version": [1]},
        {"version": {**VERSION, "id": None}},
        {"version": {**VERSION, "id": "x"}},
        {"version": {**VERSION, "schema": 5}},
    ],
    ids=str,
)
def test_answer_of_another_shape_is_an_error(answers: dict[str, Any]) -> None:
    """It is not an outage, for whose end a run would wait."""
    with (
        _registry(**answers) as registry,
        pytest.raises(
            RegistryError, match=r"not answered as by a schema registry .*check schema-registry\.url"
        ) as refused,
    ):
        registry.versions("bids")

    assert not isinstance(refused.value, UnreachableRegistryError)


def test_endless_answer_is_refused() -> None:
    """It is not read any further."""

    def send(out: Any) -> None:
        while True:
            out.write(b" " * (1 << 20))

    with _registry(send=send) as registry, pytest.raises(RegistryError, match="more than 4,194,304 bytes"):
        registry.versions("bids")


def test_packed_answer_is_not_unpacked() -> None:
    """Half a megabyte may be half a gigabyte of blanks."""
    with (
        _registry(numbers=[1] * 100_000, packed=True) as registry,
        pytest.raises(RegistryError, match="not answered as by a schema registry"),
    ):
        registry.versions("bids")


def test_answer_that_trickles_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait for some bytes is long, and the whole answer would take hours."""

    def send(out: Any) -> None:
        for _ in range(300):
            out.write(b" ")
            time.sleep(0.01)

    monkeypatch.setattr(schema_registry, "_LIMIT_S", 0.3)
    with (
        _registry(send=send) as registry,
        pytest.raises(UnreachableRegistryError, match=r"no whole answer in 0\.3 s"),
    ):
        registry.versions("bids")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"numbers": [*range(1, 1_002)]}, "1,001 versions, more than 1,000"),
        (
            {"numbers": [*range(1, 10)], "version": {**VERSION, "schema": " " * (3 << 20)}},
            "schemas of more than 16,777,216 characters",
        ),
    ],
    ids=["many", "long"],
)
def test_subject_with_too_many_versions_is_refused(answers: dict[str, Any], message: str) -> None:
    """Each is a request, and all are kept."""
    with _registry(**answers) as registry, pytest.raises(RegistryError, match=f"{message}.*delete versions"):
        registry.versions("bids")


@pytest.mark.parametrize("status", [408, 429, 503])
def test_registry_that_cannot_answer_now_is_an_outage(status: int) -> None:
    """A live run waits for the end of one; a refusal ends it."""
    with (
        _registry(status=status, version={}, numbers={}) as registry,
        pytest.raises(UnreachableRegistryError, match=f"cannot answer now \\({status}"),
    ):
        registry.versions("bids")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(b"", UnreachableRegistryError), (b"HTTP/1.1 400 no\r\n\r\n", RegistryError)],
    ids=["closes", "not TLS"],
)
def test_tls_that_a_registry_breaks_off_is_an_outage(answer: bytes, expected: type[RegistryError]) -> None:
    """A proxy whose server is away closes the connection after the first message: no certificate helps."""

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        settings = Settings.of({"schema-registry.url": url}, environment={})
        with SchemaRegistry(settings) as registry, pytest.raises(RegistryError) as failed:
            registry.versions("bids")
        listening.shutdown(socket.SHUT_RDWR)

    assert type(failed.value) is expected
    assert ("is not trusted" in str(failed.value)) == (expected is RegistryError)
