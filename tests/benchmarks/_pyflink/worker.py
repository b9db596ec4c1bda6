"""Runs SQL in PyFlink; the process of `rival.PyFlink`, in a Python that has PyFlink and not flowcore.

Each line of the input is a JSON object with a job. Each line of the output answers one; the first line is the
process id of the JVM.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
from contextlib import suppress
from typing import Any
from urllib.request import urlopen

_POLL_S = 0.05


def main() -> None:
    """Answer jobs until the input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever Flink prints is not an answer
    gateway = importlib.import_module("pyflink.java_gateway").get_gateway()
    pid = gateway.jvm.java.lang.ProcessHandle.current().pid()
    answers.write(json.dumps({"pid": pid}) + "\n")
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except Exception as error:  # noqa: BLE001 - it is raised where the job comes from
            answer = {"error": str(error)}
        answers.write(json.dumps(answer) + "\n")


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a query over bounded topics until its end.

    Args:
        job: ``options`` of Flink; statements that declare ``tables``; the ``query``; columns of the result's
            ``key``, if it is updating; the ``sink``, options of the table of results.

    Returns:
        ``began_ms``: when the first source has begun to read.
    """
    table = importlib.import_module("pyflink.table")
    common = importlib.import_module("pyflink.common")
    port = _free_port()
    options = {
        "rest.address": "127.0.0.1",
        "rest.port": port,
        "rest.bind-port": port,
        "web.refresh-interval": 50,  # milliseconds for which its answers are old; 3,000 hide a short job
        **job["options"],
    }
    configuration = common.Configuration()
    for name, value in options.items():
        configuration.set_string(name, str(value))
    settings = table.EnvironmentSettings.new_instance().in_streaming_mode()
    environment = table.TableEnvironment.create(settings.with_configuration(configuration).build())
    for statement in job["tables"]:
        environment.execute_sql(statement)
    environment.execute_sql(_declare_result(environment.sql_query(job["query"]), job))
    result = environment.execute_sql(f"INSERT INTO results {job['query']}")
    reader = _SourceTimes(f"http://127.0.0.1:{port}/jobs/{result.get_job_client().get_job_id()}")
    reader.start()
    try:
        result.wait()
    finally:
        reader.ended.set()
    reader.join()
    if reader.began_ms is None:
        msg = "the job has ended before Flink could say when its sources began to read; give it more events"
        raise RuntimeError(msg)
    return {"began_ms": reader.began_ms}


def _declare_result(query: Any, job: dict[str, Any]) -> str:
    """The table of the results, with the columns of the query."""
    columns = [
        f"`{column.getName()}` {column.getDataType().getLogicalType().copy(True).asSerializableString()}"
        for column in query._j_table.getResolvedSchema().getColumns()
    ]
    if job["key"]:
        columns.append(f"PRIMARY KEY ({', '.join(f'`{each}`' for each in job['key'])}) NOT ENFORCED")
    options = ", ".join(f"'{name}' = '{value}'" for name, value in job["sink"].items())
    return f"CREATE TABLE results ({', '.join(columns)}) WITH ({options})"


class _SourceTimes(threading.Thread):
    """Asks Flink when the sources of a job were running for the first time.

    Attributes:
        ended: Set when the job has ended.
        began_ms: The first moment; None until it is known.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.ended = threading.Event()
        self.began_ms: int | None = None

    def run(self) -> None:
        while self.began_ms is None and not self.ended.wait(_POLL_S):
            with suppress(OSError, ValueError, KeyError):  # the job is not there yet, or any more
                self.began_ms = self._first_ms()

    def _first_ms(self) -> int | None:
        times = []
        for vertex in _get(self.address)["vertices"]:
            if not vertex["name"].startswith("Source"):
                continue
            for each in _get(f"{self.address}/vertices/{vertex['id']}")["subtasks"]:
                if each["status"] in {"RUNNING", "FINISHED"}:
                    spent = each["status-duration"]
                    times.append(each["start-time"] + spent["DEPLOYING"] + spent["INITIALIZING"])
        return min(times, default=None)


def _get(address: str) -> Any:
    with urlopen(address, timeout=1) as answer:  # noqa: S310 - an address of this process
        return json.load(answer)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
