"""The Dagster UI with a running stream, for a demonstration."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dagster import DagsterRunStatus
from dagster_graphql import DagsterGraphQLClient, DagsterGraphQLClientError
from rich.console import Console

from flowcore.errors import RunError
from flowcore.kafka.broker import free_port

__all__ = ["serve_ui"]

CHECKOUT = Path(__file__).parents[2]
LONGEST_START_S = 300.0
LONGEST_END_S = 60.0
ENDED = {DagsterRunStatus.CANCELED, DagsterRunStatus.FAILURE, DagsterRunStatus.SUCCESS}


@contextmanager
def serve_ui(console: Console) -> Iterator[None]:
    """Start `dagster dev`, launch the live run through its API, and stop both at the end.

    Raises:
        RunError: The UI did not start.
    """
    # Dagster's webserver executes what any page in the browser sends to it: no page can guess this path.
    port, path = free_port(), f"/{secrets.token_urlsafe()}"
    command = [sys.executable, "-m", "dagster", "dev", "-w", str(CHECKOUT / "workspace.yaml")]
    # A new session: Ctrl-C reaches only this process, which ends the run before the servers.
    server = subprocess.Popen(  # noqa: S603 - our own interpreter
        [*command, "-h", "127.0.0.1", "-p", str(port), "--log-level", "error"],
        cwd=CHECKOUT,
        env=os.environ | {"DAGSTER_WEBSERVER_PATH_PREFIX": path},
        start_new_session=True,
    )
    try:
        with console.status("start the Dagster UI"):
            client = DagsterGraphQLClient(f"127.0.0.1:{port}{path}")
            run = _launch(client, server)
        console.print(f"Dagster UI: http://127.0.0.1:{port}{path}", soft_wrap=True)
        console.print(
            f"The stream is run {run[:8]}; Ctrl-C ends both. Only who knows the address can open the UI."
        )
        try:
            yield
        finally:
            with console.status("stop the stream"):
                client.terminate_run(run)
                end = time.monotonic() + LONGEST_END_S
                while client.get_run_status(run) not in ENDED and time.monotonic() < end:
                    time.sleep(0.5)
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(LONGEST_END_S)
        except subprocess.TimeoutExpired:
            server.kill()


def _launch(client: DagsterGraphQLClient, server: subprocess.Popen[bytes]) -> str:
    """Launch the live run as soon as the webserver has loaded the definitions."""
    end = time.monotonic() + LONGEST_START_S
    while True:
        try:
            return client.submit_job_execution("auctions_live")
        except DagsterGraphQLClientError as error:
            if server.poll() is not None or time.monotonic() > end:
                msg = f"the Dagster UI did not start: {error}; see its output above"
                raise RunError(msg) from error
            time.sleep(0.5)
