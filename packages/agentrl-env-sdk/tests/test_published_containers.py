"""Containers and pods of published tasks, as an engine and a cluster are asked for them.

Neither runs here: servers of the tests' own speak as much of their protocols as it takes to make and to
remove one.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("aiodocker")
client = pytest.importorskip("kubernetes_asyncio.client")

from aiohttp import web  # noqa: E402 - it may be absent

from agentrl_core import ConfigError  # noqa: E402
from agentrl_env_sdk.drivers import EnvironmentFailedError  # noqa: E402
from agentrl_env_sdk.published.environment import EnvironmentDelegation, create_controller  # noqa: E402


class Kiosk(EnvironmentDelegation):
    """A delegation that describes a container and a pod.

    Attributes:
        prepared: what was told after an instance was made.
    """

    def __init__(self) -> None:
        super().__init__("kiosk")
        self.prepared: list[tuple[str, str, str]] = []

    def get_subtypes(self) -> list[str]:
        return ["web_shop"]

    def get_service_port(self, subtype: str) -> int:
        return 3001

    def get_reuse_limit(self, subtype: str) -> int:
        return 1

    def get_max_execution_time(self, subtype: str) -> int:
        return 900

    async def create_docker_container(self, attrs: dict, subtype: str, colour: str = "red") -> dict:
        attrs["Image"] = "kiosk:1"
        attrs["Env"]["COLOUR"] = colour
        attrs["HostConfig"]["Binds"] = ["/data:/data:ro"]
        return attrs

    async def post_create_docker_container(
        self, subtype: str, environment_id: str, environment_url: str
    ) -> None:
        self.prepared.append((subtype, environment_id, environment_url))

    async def create_k8s_pod(self, spec: Any, subtype: str, colour: str = "red") -> Any:
        spec.containers[0].image = "kiosk:1"
        spec.containers[0].env.append(client.V1EnvVar(name="COLOUR", value=colour))
        spec.containers.append(client.V1Container(name="sidecar", image="log:1"))
        return spec, {"labels": {"team": "shops"}, "annotations": {"note": "x"}}

    async def post_create_k8s_pod(self, subtype: str, environment_id: str, environment_url: str) -> None:
        self.prepared.append((subtype, environment_id, environment_url))


class Engine:
    """As much of a Docker engine as making a container takes.

    Attributes:
        made: bodies of containers by name.
        health: what the next looks at a container's health see; the last one stays.
        url: where it listens.
    """

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self.health = ["starting", "healthy"]
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/version", self._version)
        app.router.add_post("/{v}/containers/create", self._create)
        app.router.add_post("/{v}/containers/{id}/start", self._start)
        app.router.add_get("/{v}/containers/{id}/json", self._show)
        app.router.add_delete("/{v}/containers/{id}", self._delete)
        return app

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"ApiVersion": "1.43"})

    async def _create(self, request: web.Request) -> web.Response:
        self.made[request.query["name"]] = await request.json()
        return web.json_response({"Id": request.query["name"]}, status=201)

    async def _start(self, request: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _show(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.made:
            return web.json_response({"message": "no such container"}, status=404)
        state = {"Status": "running", "Health": {"Status": self.health[0]}}
        if len(self.health) > 1:
            self.health.pop(0)
        networks = {"shops": {"IPAddress": "10.1.2.3"}}
        shown = {"Id": request.match_info["id"], "State": state, "NetworkSettings": {"Networks": networks}}
        return web.json_response(shown)

    async def _delete(self, request: web.Request) -> web.Response:
        del self.made[request.match_info["id"]]
        return web.Response(status=204)


class Cluster:
    """As much of a Kubernetes cluster as making a pod takes.

    Attributes:
        made: bodies of pods by name.
        url: where it listens.
    """

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/api/v1/namespaces/shops/pods", self._create)
        app.router.add_get("/api/v1/namespaces/shops/pods", self._watch)
        app.router.add_delete("/api/v1/namespaces/shops/pods/{name}", self._delete)
        return app

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.made[body["metadata"]["name"]] = body
        return web.json_response(body, status=201)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        assert request.query["watch"] in ("true", "True")
        answer = web.StreamResponse()
        await answer.prepare(request)
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        for ready in ("False", "True"):
            status = {
                "phase": "Running",
                "podIP": "10.4.5.6",
                "conditions": [{"type": "Ready", "status": ready}],
            }
            pod = {**self.made[name], "status": status}
            await answer.write(json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n")
        return answer

    async def _delete(self, request: web.Request) -> web.Response:
        del self.made[request.match_info["name"]]
        return web.json_response({"kind": "Status", "status": "Success"})


@pytest.fixture(autouse=True)
def leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of a test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    """A Docker engine of the test's own."""
    async for each in _served(Engine()):
        yield each


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A cluster of the test's own."""
    async for each in _served(Cluster()):
        yield each


async def _served(served: Any) -> AsyncIterator[Any]:
    runner = web.AppRunner(served.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    served.url = f"http://{host}:{port}"
    yield served
    await runner.cleanup()


async def test_a_container_is_what_the_delegation_says(engine):
    delegation = Kiosk()
    controller = create_controller(
        "docker",
        delegation,
        network_name="shops",
        state_driver="local",
        connection={"url": engine.url.replace("http", "tcp")},
    )
    session_id, ids, urls = await controller.start_session("web_shop", colour="blue")
    name = ids["web_shop"]
    body = engine.made[name]
    assert (body["Image"], body["Env"]) == ("kiosk:1", ["COLOUR=blue"])
    assert body["HostConfig"] == {
        "NetworkMode": "shops",
        "AutoRemove": True,
        "Init": True,
        "Binds": ["/data:/data:ro"],
    }
    assert urls == {"web_shop": "http://10.1.2.3:3001"}
    assert delegation.prepared == [("web_shop", name, "http://10.1.2.3:3001")]
    assert engine.health == ["healthy"]
    assert await controller.get_env_variables(name) == {"COLOUR": "blue"}
    await controller.end_session(session_id)
    assert engine.made == {}
    await controller.close()


async def test_an_unhealthy_container_is_removed_and_told(engine):
    engine.health = ["starting", "unhealthy"]
    controller = create_controller(
        "docker",
        Kiosk(),
        network_name="shops",
        state_driver="local",
        connection={"url": engine.url.replace("http", "tcp")},
    )
    with pytest.raises(EnvironmentFailedError, match="`web_shop` is running and unhealthy"):
        await controller.start_session("web_shop")
    await controller.close()
    assert engine.made == {}


async def test_a_pod_is_what_the_delegation_says(cluster, tmp_path):
    delegation = Kiosk()
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": cluster.url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(json.dumps(kubeconfig))
    for connection in (kubeconfig, {"config_file": str(tmp_path / "config")}):
        controller = create_controller(
            "k8s", delegation, namespace="shops", state_driver="local", connection=connection
        )
        async with asyncio.timeout(30):
            session_id, ids, urls = await controller.start_session("web_shop", colour="blue")
        body = cluster.made[ids["web_shop"]]
        main, sidecar = body["spec"]["containers"]
        assert (main["image"], main["env"]) == ("kiosk:1", [{"name": "COLOUR", "value": "blue"}])
        assert (main["ports"], sidecar["name"]) == ([{"containerPort": 3001}], "sidecar")
        assert body["metadata"]["labels"]["team"] == "shops"
        assert body["metadata"]["annotations"] == {"note": "x"}
        assert body["spec"]["activeDeadlineSeconds"] == 900
        assert urls == {"web_shop": "http://10.4.5.6:3001"}
        assert delegation.prepared.pop() == ("web_shop", ids["web_shop"], "http://10.4.5.6:3001")
        assert await controller.get_env_variables(ids["web_shop"]) == {"COLOUR": "blue"}
        await controller.end_session(session_id)
        assert cluster.made == {}
        await controller.close()


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"state_driver": "local"}, "network_name"),
        ({"network_name": "n", "state_driver": "etcd"}, "`state_driver` must be `local` or `redis`"),
        ({"network_name": "n", "state_options": {"sentinel": [["h", 1]]}}, "not behind a `sentinel`"),
    ],
)
async def test_a_wrong_setting_is_told(options, fault):
    with pytest.raises(ConfigError, match=fault):
        create_controller("docker", Kiosk(), **options)
