"""The probe of a broker, on answers that a real one gives for moments only."""

from __future__ import annotations

import socketserver
import struct
import subprocess
import sys
import threading
from typing import Final

API_VERSIONS, METADATA = 18, 3
SUPPORTED: Final = ((API_VERSIONS, 0, 0), (METADATA, 8, 8))
PROBE: Final = (
    "import sys; from flowcore.kafka.admin import _probe; print('probed', repr(_probe(sys.argv[1], 2)))"
)


class _FencedBroker(socketserver.ThreadingTCPServer):
    """Names itself in its first answer about the cluster, and no broker in the others, as if fenced."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.described = 0

    def answer(self, request: int, version: int) -> bytes:
        if request == API_VERSIONS:
            unsupported = 35 if version else 0
            versions = b"".join(struct.pack(">hhh", *each) for each in SUPPORTED)
            return struct.pack(">hi", unsupported, len(SUPPORTED)) + versions
        self.described += 1
        host, cluster = b"127.0.0.1", b"cluster"
        broker = struct.pack(">ih", 1, len(host)) + host + struct.pack(">ih", self.server_address[1], -1)
        brokers = struct.pack(">i", 1) + broker if self.described == 1 else struct.pack(">i", 0)
        head = struct.pack(">i", 0) + brokers + struct.pack(">h", len(cluster)) + cluster
        return head + struct.pack(">iii", 1 if self.described == 1 else -1, 0, -(2**31))


class _Connection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _FencedBroker)
        while head := self.rfile.read(12):
            size, request, version, number = struct.unpack(">ihhi", head)
            self.rfile.read(size - 8)
            body = struct.pack(">i", number) + self.server.answer(request, version)
            self.wfile.write(struct.pack(">i", len(body)) + body)


def test_broker_that_is_fenced_while_it_is_asked_does_not_end_the_process() -> None:
    """With some requests librdkafka aborts the process then."""
    with _FencedBroker() as broker:
        threading.Thread(target=broker.serve_forever, daemon=True).start()
        command = [sys.executable, "-c", PROBE, f"127.0.0.1:{broker.server_address[1]}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        broker.shutdown()

    assert (done.returncode, done.stdout[:6]) == (0, "probed"), done.stderr
    assert broker.described > 0
