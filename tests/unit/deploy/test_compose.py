"""deploy/compose is valid by the Compose specification, has no root user, and its parts match."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from flowcore.settings import Settings
from flowcore.settings.values import read_ports

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "deploy/compose"
TEXT = (COMPOSE / "compose.yaml").read_text()
GIVEN = dict(
    line.split("=", 1)
    for line in (COMPOSE / "env.example").read_text().splitlines()
    if line and not line.startswith("#")
)
OURS = ("code", "webserver", "daemon")


def interpolated(text: str) -> str:
    """Replace variables as `docker compose` does."""
    variables = {name: value or "secret" for name, value in GIVEN.items()}
    return re.sub(r"\$\{(\w+)(?::[-?][^}]*)?\}", lambda found: variables[found[1]], text)


CONTENT: dict[str, Any] = yaml.safe_load(interpolated(TEXT))
SERVICES: dict[str, Any] = CONTENT["services"]
each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)


def mounts(service: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for mount in service.get("volumes", ()):
        source, target = mount.split(":")[:2]
        yield source, target


def checked(text: str) -> PyCompose:
    """A compose file checked by the specification; ValueError if it is invalid.

    Docker takes an image with a tag and a digest; the checker takes one of them.
    """
    untagged = re.sub(r"(image: [^\s:]+):[^\s@]+@", r"\1@", interpolated(text))
    compose = PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(untagged)))
    compose.validate()
    return compose


def test_compose_file_is_valid_by_the_specification() -> None:
    """Every key and value is valid; the declared volumes are those that services use."""
    compose = checked(TEXT)

    assert set(compose.service_names()) == {
        "kafka", "postgres", "code", "proxy", "webserver", "daemon", "prometheus", "grafana",
    }  # fmt: skip
    used = {source for service in SERVICES.values() for source, _ in mounts(service)}
    assert {source for source in used if not source.startswith(".")} == CONTENT["volumes"].keys()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("    healthcheck:", "    healthchek:"),
        ("interval: 30s", "interval: soon"),
        ("condition: service_healthy", "condition: healthy"),
    ],
    ids=["key", "duration", "condition"],
)
def test_the_specification_is_strict(right: str, wrong: str) -> None:
    """A mistake in the file fails the test above."""
    with pytest.raises(ValueError, match=r"\w"):
        checked(TEXT.replace(right, wrong, 1))


@each_service
def test_service_is_not_root_and_may_do_nothing_else(service: dict[str, Any]) -> None:
    """The user is a number, there are no capabilities, and ports are published on loopback only."""
    assert re.fullmatch(r"[1-9]\d*:\d+", service["user"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert service["read_only"] is (service is not SERVICES["kafka"])
    assert not service.keys() & {"privileged", "cap_add", "pid", "devices", "ipc"}
    assert service.get("network_mode") in (None, "service:proxy")


@each_service
def test_service_is_watched_and_limited(service: dict[str, Any]) -> None:
    """It is restarted, has a health check, and has limits of memory and CPU."""
    health, limits = service["healthcheck"], service["deploy"]["resources"]["limits"]

    assert service["restart"] == "unless-stopped"
    assert health["test"][0] == "CMD"
    assert {"interval", "timeout", "start_period"} <= health.keys()
    assert limits["cpus"]
    assert limits["memory"]
    assert int(service["logging"]["options"]["max-file"]) > 0


@each_service
def test_service_has_an_image_of_a_fixed_version(service: dict[str, Any]) -> None:
    """The version is fixed, from any registry; flowcore's image is built from the checkout."""
    name, _, tag = service["image"].partition(":")

    assert tag not in ("", "latest") or name in ("flowcore", "flowcore-proxy")
    assert not re.search(r"[.:]", name.split("/")[0]) or "/" not in name


def test_image_that_is_not_built_here_can_be_chosen() -> None:
    """By a variable, with a digest for instance, whose default is that of the example."""
    defaults = dict(re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", TEXT))
    arguments = [service["build"]["args"] for service in SERVICES.values() if "build" in service]

    assert defaults == {name: image for name, image in GIVEN.items() if name.endswith("_IMAGE")}
    assert re.findall(r"^ +image: ([^$\n]+)", TEXT, re.MULTILINE) == ["flowcore", "flowcore-proxy"]
    assert all("BASE" in each for each in arguments)


def test_grafana_has_the_fixes_that_are_known() -> None:
    """Versions up to 12.3.0 can be stopped by anyone who reaches them (CVE-2026-21720)."""
    version = GIVEN["GRAFANA_IMAGE"].partition("@")[0].partition(":")[2]

    assert tuple(map(int, version.split("."))) > (12, 3, 0)


@each_service
def test_files_of_a_service_exist(service: dict[str, Any]) -> None:
    """Mounted project files exist and are mounted read-only."""
    from_here = [source for source, _ in mounts(service) if source.startswith(".") and source != "./history"]

    assert all((COMPOSE / source).is_file() for source in from_here)
    assert all(mount.endswith(":ro") for mount in service.get("volumes", ()) if mount.startswith("."))


@pytest.mark.parametrize("name", OURS)
def test_settings_are_flowcores(name: str) -> None:
    """An unknown setting would have no effect."""
    environment = SERVICES[name]["environment"]
    ours = {key: value for key, value in environment.items() if key.startswith("FLOWCORE_")}
    settings = Settings.of(environment=ours)

    changed = [
        field
        for field in Settings.__dataclass_fields__
        if getattr(settings, field) != getattr(Settings(), field)
    ]
    assert len(changed) == len(ours) == 7
    assert settings.bootstrap_servers == "kafka:19092"


def test_jvms_may_execute_where_they_unpack_libraries() -> None:
    """Docker mounts a tmpfs without execution by default: snappy, zstd and RocksDB would not load."""
    kafka, code = SERVICES["kafka"], SERVICES["code"]

    assert kafka["tmpfs"] == ["/tmp:exec"]  # noqa: S108 - in the container
    assert code["environment"]["TMPDIR"] in {target for _, target in mounts(code)}


def test_webserver_is_reached_through_the_proxy_only() -> None:
    """It listens on loopback in the proxy's network, where the proxy expects it, and publishes no port."""
    webserver, proxy = SERVICES["webserver"], SERVICES["proxy"]
    command = webserver["command"]
    address = {option: command[command.index(option) + 1] for option in ("--host", "--port")}
    start = (ROOT / "deploy/proxy/start.sh").read_text()
    (upstream,) = re.findall(r"PROXY_UPSTREAM:-(\S+?)}", start)
    (listen,) = re.findall(r"PROXY_LISTEN:-\S+?:(\d+)}", start)

    assert webserver["network_mode"] == "service:proxy"
    assert f"{address['--host']}:{address['--port']}" == upstream == "127.0.0.1:3000"
    assert not webserver.keys() & {"ports", "networks"}
    assert [port.split(":")[2] for port in proxy["ports"]] == [listen]
    assert [name for name, each in SERVICES.items() if "browsers" in each.get("networks", ())] == ["proxy"]


def test_services_share_networks_only_with_those_that_they_need() -> None:
    """Kafka, Prometheus and Grafana reach neither Dagster's database nor its webserver and daemon."""
    networks = {name: set(each.get("networks", ())) for name, each in SERVICES.items()}
    beside = {
        name: sorted(other for other in networks if other != name and networks[other] & networks[name])
        for name in networks
    }

    assert beside == {
        "kafka": ["code"],
        "postgres": ["code", "daemon", "proxy"],
        "code": ["daemon", "grafana", "kafka", "postgres", "prometheus", "proxy"],
        "proxy": ["code", "daemon", "postgres"],
        "webserver": [],
        "daemon": ["code", "postgres", "proxy"],
        "prometheus": ["code", "grafana"],
        "grafana": ["code", "prometheus"],
    }
    assert CONTENT["networks"]["dagster"] == {"internal": True}
    assert {network for each in networks.values() for network in each} == CONTENT["networks"].keys()


def test_services_find_each_other() -> None:
    """Each address in a file is a service's name and port."""
    (workspace,) = yaml.safe_load((COMPOSE / "workspace.yaml").read_text())["load_from"]
    (job,) = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    (source,) = yaml.safe_load((COMPOSE / "datasource.yaml").read_text())["datasources"]
    (dashboards,) = yaml.safe_load((ROOT / "deploy/grafana/dashboards.yaml").read_text())["providers"]
    code, kafka = SERVICES["code"], SERVICES["kafka"]["environment"]
    ports = read_ports(code["environment"]["FLOWCORE_METRICS_PROMETHEUS_PORT"])

    assert (workspace["grpc_server"]["host"], workspace["grpc_server"]["location_name"]) == (
        "code", code["command"][code["command"].index("--location-name") + 1],
    )  # fmt: skip
    assert str(workspace["grpc_server"]["port"]) == code["command"][code["command"].index("--port") + 1]
    assert job["static_configs"] == [{"targets": [f"code:{port}" for port in ports]}]
    assert len(ports) >= len(list((ROOT / "pipelines").glob("*/flow.py")))  # one for each live run
    assert f'job="{job["job_name"]}"' in (ROOT / "deploy/prometheus/alerts.yml").read_text()
    assert source["url"] == "http://prometheus:9090"
    assert f"{dashboards['options']['path']}/flowcore.json" in dict(mounts(SERVICES["grafana"])).values()
    assert (
        f"INSIDE://{code['environment']['FLOWCORE_KAFKA_BOOTSTRAP_SERVERS']}"
        in kafka["KAFKA_ADVERTISED_LISTENERS"]
    )
    assert all(set(service.get("depends_on", ())) <= SERVICES.keys() for service in SERVICES.values())


def test_dagster_is_set_up_as_elsewhere() -> None:
    """Only the storage differs; webserver, daemon and code server share it."""
    here = yaml.safe_load((COMPOSE / "dagster.yaml").read_text())
    storage = here.pop("storage")["postgres"]["postgres_db"]
    postgres = SERVICES["postgres"]["environment"]

    assert here == yaml.safe_load((ROOT / "flowcore/dagster/dagster.yaml").read_text())
    assert (storage["hostname"], storage["username"], storage["db_name"]) == (
        "postgres", postgres["POSTGRES_USER"], postgres["POSTGRES_DB"],
    )  # fmt: skip
    assert storage["password"]["env"] in SERVICES["daemon"]["environment"]
    assert all(("./dagster.yaml", "/dagster/dagster.yaml") in mounts(SERVICES[name]) for name in OURS)


def test_example_of_variables_names_all_of_them() -> None:
    """It names no others, and passwords have no default."""
    used = dict(re.findall(r"\$\{(\w+)(:[-?])?", TEXT))

    assert used.keys() == GIVEN.keys()
    assert {name for name, rule in used.items() if rule == ":?"} == {
        "POSTGRES_PASSWORD", "DAGSTER_PASSWORD", "GRAFANA_PASSWORD"
    }  # fmt: skip
