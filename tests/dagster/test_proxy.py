"""The reverse proxy of deploy/proxy, attacked as by a page of another site.

A real nginx is in front of a real webserver of Dagster. Each attack tries a mutation whose result Dagster
keeps, so that the test sees whether it was executed.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import pytest
from browsing import browsing, chromium
from dagster_ui import PROJECT, login_cookie
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from flowcore.kafka.broker import free_port
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.dagster,
    pytest.mark.skipif(
        shutil.which("nginx") is None and not os.environ.get("CI"), reason="nginx is not installed"
    ),
]

FOLDER = PROJECT / "deploy/proxy"
PASSWORD = "correct horse battery"  # noqa: S105
LOGIN = {"Authorization": "Basic " + base64.b64encode(f"dagster:{PASSWORD}".encode()).decode()}
JSON = {"Content-Type": "application/json"}
NOBODY = 65534
needs_browser = pytest.mark.skipif(chromium() is None, reason="Chromium is not installed")
KEYS = "{ instance { concurrencyLimits { concurrencyKey } } }"


@dataclass(frozen=True, slots=True)
class Proxy:
    """Where the proxy and the webserver behind it listen on loopback."""

    port: int
    reports: int
    alive: int
    upstream: int

    def send(
        self, method: str, path: str, headers: Mapping[str, str], body: str = "", port: int | None = None
    ) -> tuple[int, str]:
        """The status and the text of the response; a header ``Host`` replaces the correct one."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=60)
        try:
            connection.request(method, path, body or None, dict(headers))
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()

    def executed(self) -> set[str]:
        """The keys of the mutations that were executed, asked from the webserver itself."""
        body = json.dumps({"query": KEYS})
        _, text = self.send("POST", "/graphql", JSON, body, self.upstream)
        return {each["concurrencyKey"] for each in json.loads(text)["data"]["instance"]["concurrencyLimits"]}


# A page that sends mutations to the address after its `?`, by each way for which browsers ask no permission.
EVIL = """
<body><form method=post enctype=text/plain><button>form</button></form><script>
const address = decodeURIComponent(location.search.slice(1));
const of = key => `mutation { setConcurrencyLimit(concurrencyKey: "page-${key}", limit: 1) }`;
const path = key => `${address}/graphql?${key}&query=${encodeURIComponent(of(key))}`;
const tell = text => document.body.append(text);
document.forms[0].action = path("form");
const image = new Image();
const shown = new Promise(done => { image.onload = image.onerror = done; image.src = path("image"); });
const options = {mode: "no-cors", credentials: "include"};
const send = (key, more) => fetch(path(key), {...options, ...more}).catch(() => 0);
const body = JSON.stringify({query: of("text")});
const all = [shown, send("get", {}), send("text", {method: "POST", body})];
Promise.all(all).then(() => tell("everything sent"));
const socket = new WebSocket(address.replace("http", "ws") + "/graphql", "graphql-ws");
socket.onopen = () => tell("WebSocket open");
socket.onclose = () => tell("WebSocket closed");
</script></body>
"""


@contextmanager
def page_of_another_site(text: str) -> Iterator[int]:
    """Serve a page at a port of its own, which is another origin."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(http.client.OK)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield server.server_port
        server.shutdown()


def mutation(key: str) -> str:
    return f'mutation {{ setConcurrencyLimit(concurrencyKey: "{key}", limit: 1) }}'


@contextmanager
def process(
    command: list[str], log: Path, environment: Mapping[str, str], user: int | None = None
) -> Iterator[None]:
    with log.open("wb") as output:
        log.chmod(0o666)  # nginx opens it once more
        server = subprocess.Popen(
            command, env=dict(environment), stdout=output, stderr=subprocess.STDOUT, user=user
        )
        try:
            yield
        finally:
            server.terminate()
            server.wait(timeout=60)


@contextmanager
def nginx(settings: Mapping[str, str]) -> Iterator[Path]:
    """The proxy as in its container: not root, with files that it may only read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("nginx.conf", "start.sh"):
            shutil.copy(FOLDER / file, folder)
        user = NOBODY if os.geteuid() == 0 else None
        environment = {"PATH": os.environ["PATH"], **settings}
        with process([str(folder / "start.sh")], folder / "log", environment, user):
            yield folder / "log"


def answers(port: int, path: str) -> bool:
    try:
        return Proxy(port, 0, 0, 0).send("GET", path, {})[0] < http.client.BAD_REQUEST
    except OSError:
        return False


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """The proxy before Dagster's webserver, which has no definitions."""
    home = tmp_path_factory.mktemp("home")
    found = Proxy(free_port(), free_port(), free_port(), free_port())
    webserver = str(Path(sys.executable).parent / "dagster-webserver")
    settings = {
        "PROXY_LISTEN": f"127.0.0.1:{found.port}",
        "PROXY_REPORTS": f"127.0.0.1:{found.reports}",
        "PROXY_ALIVE": str(found.alive),
        "PROXY_UPSTREAM": f"127.0.0.1:{found.upstream}",
        "PROXY_NAMES": "127.0.0.1 dagster.example",
        "PROXY_PASSWORD": PASSWORD,
    }
    with ExitStack() as servers:
        command = [webserver, "-p", str(found.upstream), "--empty-workspace"]
        servers.enter_context(process(command, home / "log", os.environ | {"DAGSTER_HOME": str(home)}))
        log = servers.enter_context(nginx(settings))
        wait_until(lambda: answers(found.alive, "/"), f"nginx answers: {log.read_text()}")
        wait_until(lambda: answers(found.upstream, "/server_info"), "the webserver answers")
        yield found


def test_webserver_alone_executes_what_a_page_sends(proxy: Proxy) -> None:
    """What the proxy is for: forms, text and GET are mutations, and nobody asks where they come from."""
    page = {"Origin": "http://evil.invalid"}
    for number, (method, headers) in enumerate(
        [("GET", page), ("POST", page | {"Content-Type": "application/x-www-form-urlencoded"})]
    ):
        path = f"/graphql?query={quote(mutation(f'bare-{number}'))}"
        assert proxy.send(method, path, headers, port=proxy.upstream)[0] == http.client.OK
    text = page | {"Content-Type": "text/plain; application/json"}
    proxy.send("POST", "/graphql", text, json.dumps({"query": mutation("bare-2")}), proxy.upstream)

    assert {"bare-0", "bare-1", "bare-2"} <= proxy.executed()


def test_person_with_the_password_uses_the_ui(proxy: Proxy) -> None:
    """Its page, a query and a mutation as the UI sends them, and as a client without a browser does."""
    own = LOGIN | JSON | {"Origin": f"http://127.0.0.1:{proxy.port}"}
    status, page = proxy.send("GET", "/", LOGIN | {"Accept": "text/html"})
    made = proxy.send("POST", "/graphql", own, json.dumps({"query": mutation("own")}))
    client = proxy.send("POST", "/graphql", LOGIN | JSON, json.dumps({"query": mutation("client")}))
    behind_tls = own | {"Host": "dagster.example", "Origin": "https://dagster.example"}
    tls = proxy.send("POST", "/graphql", behind_tls, json.dumps({"query": mutation("tls")}))

    assert (status, '<div id="root"' in page) == (http.client.OK, True)
    assert [made[0], client[0], tls[0]] == [http.client.OK] * 3
    assert {"own", "client", "tls"} <= proxy.executed()


ATTACKS = {
    "no login": (401, "POST", "/graphql", JSON),
    "no login, page": (401, "GET", "/", {}),
    "wrong password": (401, "POST", "/graphql", JSON | {"Authorization": "Basic ZGFnc3Rlcjp3cm9uZw=="}),
    "name of another site": (421, "POST", "/graphql", LOGIN | JSON | {"Host": "evil.invalid"}),
    "name that begins alike": (421, "GET", "/", LOGIN | {"Host": "127.0.0.1.evil.invalid"}),
    "page of another site": (403, "POST", "/graphql", LOGIN | JSON | {"Origin": "http://evil.invalid"}),
    "page at another port": (403, "POST", "/graphql", LOGIN | JSON | {"Origin": "http://127.0.0.1:1"}),
    "origin that begins alike": (
        403, "POST", "/graphql", LOGIN | JSON | {"Host": "dagster.example", "Origin": "http://dagster.example.evil"},
    ),
    "sandboxed page": (403, "POST", "/graphql", LOGIN | JSON | {"Origin": "null"}),
    "image": (405, "GET", "/graphql?query={q}", LOGIN),
    "image, encoded path": (405, "GET", "/%67raphql?query={q}", LOGIN),
    "image, two slashes": (405, "GET", "//graphql?query={q}", LOGIN),
    "image, dots": (405, "GET", "/a/../graphql?query={q}", LOGIN),
    "head": (405, "HEAD", "/graphql?query={q}", LOGIN),
    "form": (
        415, "POST", "/graphql?query={q}", LOGIN | {"Content-Type": "application/x-www-form-urlencoded"},
    ),
    "form with files": (
        415, "POST", "/graphql?query={q}", LOGIN | {"Content-Type": "multipart/form-data; boundary=b"},
    ),
    "text": (415, "POST", "/graphql", LOGIN | {"Content-Type": "text/plain"}),
    "text that names JSON": (
        415, "POST", "/graphql", LOGIN | {"Content-Type": "text/plain; application/json"},
    ),
    "text that begins alike": (415, "POST", "/graphql", LOGIN | {"Content-Type": "application/jsonp"}),
    "GraphQL": (415, "POST", "/graphql", LOGIN | {"Content-Type": "application/graphql"}),
    "no type": (415, "POST", "/graphql?query={q}", LOGIN),
    "preflight": (405, "OPTIONS", "/graphql", LOGIN),
    "preflight of another site": (403, "OPTIONS", "/graphql", LOGIN | {"Origin": "http://evil.invalid"}),
    "other method": (405, "PUT", "/graphql", LOGIN | JSON),
    "WebSocket elsewhere": (
        403, "GET", "/graphql/x?query={q}", LOGIN | {"Upgrade": "websocket", "Connection": "upgrade"},
    ),
    "false WebSocket": (
        403, "GET", "/graphql?query={q}", LOGIN | {"Upgrade": "websocket", "Connection": "upgrade"},
    ),
    "report in a form": (
        415, "POST", "/report_asset_materialization/x", LOGIN | {"Content-Type": "text/plain"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_attack_is_refused(proxy: Proxy, attack: tuple[int, str, str, Mapping[str, str]]) -> None:
    """By its own status, and what it tried was not done."""
    expected, method, path, headers = attack
    key = f"evil-{abs(hash((method, path, *headers.items())))}"
    body = json.dumps({"query": mutation(key)}) if method == "POST" else ""
    status, _ = proxy.send(method, path.replace("{q}", quote(mutation(key))), headers, body)

    assert status == expected
    assert key not in proxy.executed()


def test_guesses_of_the_password_are_limited_and_who_has_logged_in_is_not() -> None:
    """Each guess costs the time of a slow hash; the answer to one too many does not tell that it is right."""
    right = LOGIN["Authorization"]
    wrong = [f"{right[:-4]}{number:04}" for number in range(100)]
    with page_of_another_site("behind") as upstream:
        only = Proxy(free_port(), free_port(), free_port(), upstream)
        settings = {
            "PROXY_LISTEN": f"127.0.0.1:{only.port}",
            "PROXY_REPORTS": f"127.0.0.1:{only.reports}",
            "PROXY_ALIVE": str(only.alive),
            "PROXY_UPSTREAM": f"127.0.0.1:{upstream}",
            "PROXY_PASSWORD": PASSWORD,
        }
        with nginx(settings) as log:
            wait_until(lambda: answers(only.alive, "/"), f"nginx answers: {log.read_text()}")
            refused, given = login_cookie(only.port, wrong[0]), login_cookie(only.port, right)
            guesses = [only.send("GET", "/", {"Authorization": each})[0] for each in wrong]
            found = {only.send("GET", "/", {"Authorization": right})[0] for _ in range(50)}
            assert given is not None
            headers = {"Authorization": right, "Cookie": given.partition(";")[0]}
            logged_in = {only.send("GET", "/", headers)[0] for _ in range(50)}
            forged = {
                only.send("GET", "/", headers | {"Cookie": f"flowcore_proxy={text}"})[0]
                for text in ("", "0") * 25
            }

    assert refused is None
    assert given.endswith("; HttpOnly; SameSite=Strict; Path=/")
    assert set(guesses) == {401, 429}
    assert guesses.count(401) < 50
    assert 429 in found
    assert 429 in forged
    assert logged_in == {200}


def test_websocket_with_the_own_origin_subscribes(proxy: Proxy) -> None:
    """Messages pass in both directions."""
    with connect(
        f"ws://127.0.0.1:{proxy.port}/graphql", subprotocols=["graphql-ws"],  # type: ignore[list-item]
        origin=f"http://127.0.0.1:{proxy.port}", additional_headers=LOGIN,  # type: ignore[arg-type]
    ) as socket:  # fmt: skip
        socket.send(json.dumps({"type": "connection_init"}))
        answer = json.loads(socket.recv(timeout=30))

    assert answer == {"type": "connection_ack"}


@pytest.mark.parametrize(
    ("origin", "headers", "status"),
    [
        ("http://evil.invalid", LOGIN, 403),
        ("null", LOGIN, 403),
        (None, LOGIN, 403),
        ("own", {}, 401),
    ],
    ids=["another site", "sandboxed page", "none", "no login"],
)
def test_websocket_of_anyone_else_is_refused(
    proxy: Proxy, origin: str | None, headers: Mapping[str, str], status: int
) -> None:
    """Browsers ask no permission for WebSockets to other sites, and send the login along."""
    given = f"http://127.0.0.1:{proxy.port}" if origin == "own" else origin
    with pytest.raises(InvalidStatus) as refused:
        connect(f"ws://127.0.0.1:{proxy.port}/graphql", origin=given, additional_headers=headers)  # type: ignore[arg-type]

    assert refused.value.response.status_code == status


def test_live_queries_report_and_do_nothing_else_without_a_login(proxy: Proxy) -> None:
    """The port of reports takes materializations, which Dagster keeps, and neither queries nor forms."""
    report = json.dumps({"asset_key": ["shop", "live"]})
    path = "/report_asset_materialization/"
    done = proxy.send("POST", path, JSON, report, proxy.reports)
    refused = {
        "query": proxy.send("POST", "/graphql", JSON, json.dumps({"query": KEYS}), proxy.reports)[0],
        "page": proxy.send("GET", "/", {}, port=proxy.reports)[0],
        "form": proxy.send("POST", path, {"Content-Type": "text/plain"}, report, proxy.reports)[0],
        "origin": proxy.send("POST", path, JSON | {"Origin": "http://a"}, report, proxy.reports)[0],
        "get": proxy.send("GET", path, {}, port=proxy.reports)[0],
    }

    assert (done[0], json.loads(done[1])) == (http.client.OK, {})
    assert refused == {"query": 403, "page": 403, "form": 415, "origin": 403, "get": 405}


@pytest.mark.thorough
@needs_browser
def test_ui_works_in_a_browser_behind_the_proxy(proxy: Proxy) -> None:
    """Its scripts, queries and WebSocket pass: nothing of a page is refused."""
    with browsing(proxy.port, ("dagster", PASSWORD)) as browser:
        refused: list[str] = []
        browser.page.on("response", lambda each: refused.append(each.url) if each.status >= 400 else None)
        frames: list[str] = []
        received = ("framereceived", lambda text: frames.append(str(text)))
        browser.page.on("websocket", lambda socket: socket.on(*received))
        browser.open("/runs")
        browser.wait_for("No runs found")
        browser.page.wait_for_timeout(1000)  # Playwright delivers its events while it waits

    assert any("connection_ack" in frame for frame in frames)
    assert [url for url in refused if "favicon" not in url] == []


@needs_browser
def test_page_of_another_site_does_nothing_in_a_browser_that_is_logged_in(proxy: Proxy) -> None:
    """What a page can send without asking, with the login that the browser has: each is refused."""
    with page_of_another_site(EVIL) as other, browsing(proxy.port, ("dagster", PASSWORD)) as browser:
        browser.open("/runs")
        browser.wait_for("No runs found")
        statuses: dict[str, int] = {}
        browser.page.on("response", lambda each: statuses.update({each.url: each.status}))
        address = f"http://127.0.0.1:{proxy.port}"
        browser.page.goto(f"http://127.0.0.1:{other}/?{quote(address)}")
        browser.wait_for("WebSocket closed")
        browser.wait_for("everything sent")
        browser.page.get_by_role("button", name="form").click()
        browser.page.wait_for_url(f"{address}/**")

    sent = {url.split("?")[1].split("&")[0]: status for url, status in statuses.items() if "/graphql?" in url}
    assert sent.keys() >= {"text", "form"}  # Chromium hides some responses to images and such
    assert all(status in (403, 405, 415) for status in sent.values())
    assert not {key for key in proxy.executed() if key.startswith("page-")}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROXY_PASSWORD", "short"),
        ("PROXY_PASSWORD", ""),
        ("PROXY_NAMES", "a; } server { listen 1"),
        ("PROXY_NAMES", "*"),
        ("PROXY_UPSTREAM", "a:1; return 200"),
        ("PROXY_USER", "ann:x\nbob"),
        ("PROXY_LISTEN", "8080"),
    ],
)
def test_proxy_does_not_start_with_settings_that_it_cannot_trust(name: str, value: str) -> None:
    """Without a password it would be open; with another text nginx would read other directives."""
    with nginx({"PROXY_PASSWORD": PASSWORD, "PROXY_LISTEN": "127.0.0.1:1", name: value}) as log:
        wait_until(lambda: "proxy: " in log.read_text(), "it says why", 10)
        text = log.read_text()

    assert name in text
    assert "[emerg]" not in text
