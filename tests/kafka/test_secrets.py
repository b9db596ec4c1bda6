"""What runs write has no secret, and is their user's only: a word in each secret is looked for everywhere."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

import psutil
import pytest
from confluent_kafka import Producer

from flowcore.kafka import broker
from flowcore.kafka.broker import EmbeddedBroker, free_port
from flowcore.kafka.topics import end_offsets, ensure_topics
from flowcore.settings import secret_keys
from tests.waiting import LONGEST_S

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

CANARY = "canary4711"
BEARER = "FLOWCORE_SCHEMA_REGISTRY_BEARER_AUTH_TOKEN"
PASSWORD = f'{CANARY}"\\x'
LISTENER = """
listeners=PLAINTEXT://{{host}}:{{port}},CONTROLLER://{{host}}:{{controller_port}},LOGIN://{{host}}:{login}
advertised.listeners=PLAINTEXT://{{host}}:{{port}},LOGIN://{{host}}:{login}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={pem}
listener.name.login.sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  user_ann="canary4711\\\\"\\\\\\\\x";
"""
FLOWS = """
from flowcore import Flow, KafkaTopic, Parquet

def double(row):
    if row["id"] == 3:
        raise RuntimeError("three")
    return {"id": 2 * row["id"]}

live = Flow("live")
rows = live.read("in", KafkaTopic("in", schema="id BIGINT")).map(double, schema="id BIGINT", name="doubled")
rows.write("out", KafkaTopic("out", delivery="exactly-once"))
rows.deduplicate(by="id", within=None, name="once").write(
    "counts", KafkaTopic("counts", elements="tagged", signed=True)
)
failing = Flow("failing")
history = KafkaTopic("in", schema="id BIGINT", until="latest")
failing.read("past", history).write("files", Parquet("files"))
failing.read("in", history).map(double, schema="id BIGINT", name="failed").write("copy", KafkaTopic("copy"))
"""
WRONG = """
from flowcore import Flow, KafkaTopic

flow = Flow("wrong")
flow.read("in", KafkaTopic("in", schema="id BIGINT")).where("idd > 1").write("out", KafkaTopic("out"))
"""

DEFINITIONS = """
from flowcore.dagster import definitions, flow_assets
from flows import failing

defs = definitions(flow_assets(failing))
"""


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with flows; all that runs write is in ``written``, what they are given in ``given``."""

    folder: Path
    broker: str
    environment: dict[str, str]

    @property
    def given(self) -> Path:
        return self.folder / "given"

    @property
    def written(self) -> Path:
        return self.folder / "written"

    def start(
        self, name: str, *arguments: str, program: str = "flowcore", **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a command; its output is a file of this name."""
        with (self.written / f"{name}.txt").open("wb") as output:
            return subprocess.Popen(
                [program, *arguments], cwd=self.written, env=self.environment | environment,
                stdout=output, stderr=subprocess.STDOUT, start_new_session=True, umask=0,
            )  # fmt: skip

    def fail(self, name: str, *arguments: str, **environment: str) -> None:
        assert self.start(name, *arguments, **environment).wait(120) != 0, name

    def find(self, *words: str) -> list[str]:
        """The files with one of these words."""
        files = [path for path in self.written.rglob("*") if path.is_file()]
        return [str(path) for path in files if any(word.encode() in path.read_bytes() for word in words)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Flows, a broker with a login, and settings with a secret wherever there can be one."""
    folder = tmp_path_factory.mktemp("secrets")
    given, written = folder / "given", folder / "written"
    given.mkdir()
    written.mkdir()
    key, certificate, both = given / "key.pem", given / "certificate.pem", given / "both.pem"
    made_of = ["-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=broker"]
    subprocess.run(
        ["openssl", "req", "-x509", *made_of, "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_text(key.read_text() + certificate.read_text())
    encrypted = given / "encrypted.pem"
    subprocess.run(
        ["openssl", "pkcs8", "-topk8", "-in", str(key), "-out", str(encrypted), "-passout", f"pass:{CANARY}"],
        check=True, capture_output=True,
    )  # fmt: skip
    (given / "flows.py").write_text(FLOWS)
    (given / "wrong.py").write_text(WRONG)
    (given / "in_dagster.py").write_text(DEFINITIONS)
    (given / "password").write_text(f"{PASSWORD}\n")
    (given / "settings.toml").write_text(
        f"[spark]\nauthenticate.secret = '{CANARY}'\nssl.keyPassword = '{CANARY}'\n"
        f"hadoop.fs.s3a.secret.key = '{CANARY}'\nhadoop.fs.azure.account.key.shop = '{CANARY}'\n"
    )
    login = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker, "_PROPERTIES", broker._PROPERTIES + LISTENER.format(login=login, pem=both))
        with EmbeddedBroker() as started:
            ensure_topics(started.bootstrap_servers, {"in": 1, "counts": 1})
            producer = Producer({"bootstrap.servers": started.bootstrap_servers})
            for number in range(5):
                producer.produce("in", b'{"id": %d}' % number)
            assert producer.flush(30) == 0
            settings = {
                "KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{login}",
                "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
                "KAFKA_SASL_MECHANISM": "PLAIN",
                "KAFKA_SASL_USERNAME": "ann",
                "KAFKA_SASL_PASSWORD_FILE": str(given / "password"),
                "KAFKA_SSL_CA": str(certificate),
                "KAFKA_SSL_CERTIFICATE": str(certificate),
                "KAFKA_SSL_KEY": str(encrypted),
                "KAFKA_SSL_KEY_PASSWORD": CANARY,
                "KAFKA_CONTROL_KEY": f"{CANARY}-{CANARY}",
                "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO": f"ann:{CANARY}",
                "METRICS_LATENCY_INTERVAL": "1 s",
                "EXECUTION_SHORT_LIVED": "true",
                "EXECUTION_STAGES_AT_ONCE": "1",
                "SETTINGS": str(given / "settings.toml"),
            }
            environment = os.environ | {f"FLOWCORE_{name}": value for name, value in settings.items()}
            python_path = f"{given}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            yield Project(folder, started.bootstrap_servers, environment | {"PYTHONPATH": python_path})


@pytest.fixture(scope="module")
def runs(project: Project) -> Project:
    """The project after a live run, and runs that fail in different ways; with Spark's UI and event log."""
    ui, events = free_port(), project.written / "events"
    events.mkdir()
    shown = {
        "spark.ui.enabled": "true", "spark.ui.port": ui, "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false", "spark.eventLog.dir": events, "spark.log.level": "DEBUG",
    }  # fmt: skip
    options = [part for key, value in shown.items() for part in ("--set", f"{key}={value}")]

    run = project.start("live", "run", "flows:live", "--mode", "micro-batch", *options)
    try:
        _wait(run, lambda: end_offsets(project.broker, "counts").get(0, 0) >= 4)
        tree = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        lines, listening = [], []
        for process in tree:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                lines.append(" ".join(process.cmdline()))
                ports = [each.laddr for each in process.net_connections("tcp") if each.status == "LISTEN"]
                listening += [
                    f"{address.ip} {'UI' if address.port == ui else address.port}" for address in ports
                ]
        (project.written / "command-lines.txt").write_text("\n".join(lines))
        (project.written / "listening.txt").write_text("\n".join(listening))
        _keep_pages(project.written / "ui", ui)
        assert project.start("top", "top", "live", "--once").wait(60) == 0
    finally:
        run.send_signal(signal.SIGINT)
        assert run.wait(60) in (0, 130), (project.written / "live.txt").read_text()
    assert project.start("plan", "plan", "flows:live", "--verbose").wait(60) == 0
    assert project.start("report", "report", "live", "--html", "report.html").wait(60) == 0
    project.fail("function", "run", "flows:failing", "--bounded", *options[4:])
    project.fail("column", "run", "wrong:flow", "--slice")
    wrong = project.given / "wrong"
    wrong.write_text(f"{CANARY}0")
    project.fail("password", "run", "flows:live", "--slice", FLOWCORE_KAFKA_SASL_PASSWORD_FILE=str(wrong))
    broken = project.given / "broken.pem"
    broken.write_text(f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n")
    project.fail("key", "run", "flows:live", "--slice", FLOWCORE_KAFKA_SSL_KEY=str(broken))
    _fail_with_secrets(project, broken)
    _fail_in_dagster(project)
    return project


def _fail_in_dagster(project: Project) -> None:
    """A run that materializes a table and then fails; Dagster keeps its events, logs and configuration."""
    home = project.written / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    command = ("asset", "materialize", "--select", "*", "-m", "in_dagster")
    run = project.start("in-dagster", *command, program="dagster", DAGSTER_HOME=str(home))
    assert run.wait(180) != 0


def _fail_with_secrets(project: Project, broken: Path) -> None:
    """Runs that end with an error about a secret, or beside one."""
    variables = {
        "mistyped": {"FLOWCORE_KAFKA_SASL_PASWORD": CANARY},
        "key-password": {"FLOWCORE_KAFKA_SSL_KEY_PASSWORD": f"{CANARY}0"},
        "authority": {"FLOWCORE_KAFKA_SSL_CA": str(broken)},
        "user": {"FLOWCORE_KAFKA_SASL_USERNAME": "bob", BEARER: CANARY},
        "short-key": {"FLOWCORE_KAFKA_CONTROL_KEY": CANARY},
    }
    for name, variable in variables.items():
        project.fail(name, "run", "flows:live", "--slice", **variable)
    options = {
        "option": f"kafka.sasl.password={CANARY}",
        "mistyped-option": f"kafka.sasl.pasword={CANARY}",
        "spark-option": f"spark.hadoop.fs.azure.account.key.shop={CANARY}",
        "no-encryption": "spark.master=spark://127.0.0.1:9",
    }
    for name, option in options.items():
        project.fail(name, "run", "flows:live", "--slice", "--set", option)


def test_secrets_are_nowhere(runs: Project) -> None:
    """Neither in output, logs, state and reports, nor in Spark's UI and event log, nor with Dagster.

    Nor are they in a command line.
    """
    keys = [(runs.given / name).read_text().splitlines()[5] for name in ("key.pem", "encrypted.pem")]
    words = (CANARY, *keys)
    lines = (runs.written / "command-lines.txt").read_text().splitlines()

    for key in secret_keys():
        name = f"FLOWCORE_{re.sub('[.-]', '_', key).upper()}"
        assert {name, f"{name}_FILE"} & {*runs.environment, BEARER}, key
    assert any("pyspark" in line and "java" in line for line in lines)
    assert any("daemon" in line for line in lines)
    assert runs.find("DEBUG KafkaMicroBatchStream", "DEBUG MicroBatchExecution")  # its log says a lot
    # Spark was about to show these, and has hidden their values.
    for key in ("spark.authenticate.secret", "kafka.sasl.jaas.config", "kafka.ssl.keystore.key"):
        assert runs.find(key), key
    logs = [path.read_text() for path in (runs.written / "events").rglob("*") if path.is_file()]
    assert any("spark.authenticate.secret" in log and "redacted" in log for log in logs)
    in_dagster = {Path(name).name for name in runs.find("RuntimeError") if "/dagster/" in name}
    assert any(name.endswith(".db") for name in in_dagster), in_dagster
    assert runs.find(*words) == []


def test_run_listens_on_loopback_only(runs: Project) -> None:
    """Spark's UI has no login: other machines must not reach it, nor any other port of a run."""
    listening = (runs.written / "listening.txt").read_text().splitlines()

    assert any(line.endswith(" UI") for line in listening)
    assert [line for line in listening if not line.startswith(("127.", "::1 ", "::ffff:127."))] == []


def test_files_of_a_run_are_its_users_only(runs: Project) -> None:
    """This holds for files of Python, the JVM, RocksDB and Parquet, though the umask was 0."""
    state, sink = runs.written / ".flowcore", runs.written / "files"
    files = [state, sink, *state.rglob("*"), *sink.rglob("*")]
    kinds = ("*.plan.json", "spark.log", "manifest.json", "commits/0", "*.changelog", "*.parquet", "*.jsonl")

    assert [kind for kind in kinds if not any(file.match(kind) for file in files)] == []
    modes = {file.relative_to(runs.written): stat.S_IMODE(file.stat().st_mode) & 0o077 for file in files}
    assert {str(file): oct(mode) for file, mode in modes.items() if mode} == {}


def _wait(run: subprocess.Popen[bytes], condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONGEST_S
    while not condition():
        assert run.poll() is None
        assert time.monotonic() < end
        time.sleep(0.2)


def _keep_pages(folder: Path, port: int) -> None:
    """Write the pages of Spark's UI to files."""
    folder.mkdir()
    for page in ("environment/", "SQL/", "StreamingQuery/", "jobs/", "executors/", "api/v1/applications"):
        address = f"http://127.0.0.1:{port}/{page}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                (folder / page.replace("/", "-")).write_bytes(answer.read())
        except URLError as error:
            raise AssertionError(address) from error
