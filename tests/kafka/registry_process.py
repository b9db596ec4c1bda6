"""A real schema registry (Apicurio) behind TLS and a login, for tests.

The registry is a process of its own, which keeps its content in memory. It has no login without an issuer of
tokens, so nginx is before it: one port asks for a name and a password, the other one for a token.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from flowcore.installation.cache import cache_folder, lock_folder, remove_partial
from flowcore.installation.jars import pyspark_jars
from flowcore.installation.java import find_java
from flowcore.kafka.broker import free_port

__all__ = ["LOGIN", "TOKEN", "RunningRegistry", "registry_process"]

LOGIN: Final = "flow:pa$$ w0rd"
TOKEN: Final = "t0ken"  # noqa: S105 - ends with the tests
_VERSION: Final = "3.0.9"
_SHA256: Final = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_IVY: Final = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="flowcore" module="registry"/>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{_VERSION}" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
_IVY_SETTINGS: Final = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""  # the parent of its POM was never published
_START_S: Final = 180
_NGINX: Final = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  ssl_certificate {folder}/registry.pem;
  ssl_certificate_key {folder}/registry.pem;
  server {{
    listen 127.0.0.1:{basic} ssl;
    auth_basic registry;
    auth_basic_user_file {folder}/users;
    location / {{ proxy_pass http://127.0.0.1:{port}/apis/ccompat/v7/; }}
  }}
  server {{
    listen 127.0.0.1:{bearer} ssl;
    location / {{
      if ($http_authorization != "Bearer {token}") {{ return 401; }}
      proxy_pass http://127.0.0.1:{port}/apis/ccompat/v7/;
    }}
  }}
}}
"""


class RunningRegistry:
    """A started registry, and the settings of a run by the way to log in.

    Attributes:
        url: Its own address, which asks for no login.
        ca: The PEM file of the authority that signed its certificate.
        other_ca: The PEM file of another authority.
    """

    def __init__(self, folder: Path, port: int, basic: int, bearer: int) -> None:
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        self.ca, self.other_ca = str(folder / "ca.pem"), str(folder / "other.pem")
        self._basic, self._bearer = f"https://127.0.0.1:{basic}", f"https://127.0.0.1:{bearer}"

    @property
    def open(self) -> dict[str, str]:
        """Settings without TLS and login."""
        return {"schema-registry.url": self.url}

    @property
    def basic(self) -> dict[str, str]:
        """Settings with TLS, a name and a password."""
        return {
            "schema-registry.url": self._basic,
            "schema-registry.ssl.ca.location": self.ca,
            "schema-registry.basic.auth.user.info": LOGIN,
        }

    @property
    def bearer(self) -> dict[str, str]:
        """Settings with TLS and a token."""
        return {
            "schema-registry.url": self._bearer,
            "schema-registry.ssl.ca.location": self.ca,
            "schema-registry.bearer.auth.token": TOKEN,
        }

    def register(self, subject: str, schema: Any) -> int:
        """Register a schema as another producer does, and return its id."""
        found = self._send("POST", f"subjects/{subject}/versions", {"schema": json.dumps(schema)})
        return int(found["id"])

    def set_rule(self, subject: str, rule: str) -> None:
        """Set the compatibility rule of a subject, which has none at first."""
        self._send("PUT", f"config/{subject}", {"compatibility": rule})

    def delete(self, subject: str, version: int) -> None:
        """Delete a version of a subject."""
        self._send("DELETE", f"subjects/{subject}/versions/{version}", None)

    def _send(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", data, kind, method=method)  # noqa: S310 - http
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
            return json.load(answer)


@contextmanager
def registry_process() -> Iterator[RunningRegistry]:
    """Start the registry, and nginx before it."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        _sign(folder)
        (folder / "users").write_text(LOGIN.replace(":", ":{PLAIN}", 1) + "\n")
        port, basic, bearer = free_port(), free_port(), free_port()
        config = _NGINX.format(folder=folder, port=port, basic=basic, bearer=bearer, token=TOKEN)
        (folder / "nginx.conf").write_text(("user root;" if os.geteuid() == 0 else "") + config)
        java = [find_java().executable, "-Xmx256m", "-XX:TieredStopAtLevel=1"]
        java += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
        jar = f"apicurio-registry-app-{_VERSION}-runner.jar"
        running.enter_context(_process([*java, "-jar", str(_unpacked() / jar)], folder / "log"))
        nginx = [shutil.which("nginx") or "nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
        running.enter_context(_process(nginx, folder / "nginx.log"))
        _wait(f"http://127.0.0.1:{port}/apis/ccompat/v7/subjects", folder / "log")
        yield RunningRegistry(folder, port, basic, bearer)


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            yield
        finally:
            server.terminate()
            server.wait(timeout=60)


def _wait(url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - http
        except OSError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        else:
            return


def _sign(folder: Path) -> None:
    """Make an authority and the certificate of the registry, and an authority that has signed nothing."""
    new = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    for name in ("ca", "other"):
        out = ["-keyout", f"{name}.key", "-out", f"{name}.pem"]
        _run(folder, [*new, "-x509", "-days", "2", "-subj", f"/CN={name}", *out])
    _run(folder, [*new, "-subj", "/CN=registry", "-keyout", "registry.key", "-out", "registry.request"])
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    signed = ["openssl", "x509", "-req", "-days", "2", "-in", "registry.request", "-out", "registry.crt"]
    _run(folder, [*signed, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"])
    parts = [(folder / f"registry.{end}").read_text() for end in ("crt", "key")]
    (folder / "registry.pem").write_text("".join(parts))


def _run(folder: Path, command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd=folder)


def _unpacked() -> Path:
    """The folder with the registry, which is downloaded and compared with its checksum if it is missing."""
    folder = cache_folder() / "registry" / _SHA256[:16]
    if not folder.is_dir():
        with lock_folder(folder.parent) as lock:
            if not folder.is_dir():  # another process may have downloaded it meanwhile
                remove_partial(folder.parent)
                _download(folder, lock)
    return folder


def _download(folder: Path, lock: int) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".partial-") as partial:
        ivy_xml = Path(partial, "ivy.xml")
        ivy_xml.write_text(_IVY)
        Path(partial, "settings.xml").write_text(_IVY_SETTINGS)
        ivy = next(pyspark_jars().glob("ivy-*.jar"))
        subprocess.run(
            [find_java().executable, "-jar", ivy, "-warn", "-settings", f"{partial}/settings.xml",
             "-ivy", ivy_xml, "-cache", f"{partial}/cache",
             "-retrieve", f"{partial}/[artifact].[ext]"],
            check=True, capture_output=True, pass_fds=(lock,),
        )  # fmt: skip
        packed = Path(partial, "apicurio-registry-app.tar.gz")
        with packed.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == _SHA256
        whole = Path(partial, "whole")
        with tarfile.open(packed) as archive:
            archive.extractall(whole, filter="data")
        whole.rename(folder)
