"""Environments that are pods of a Kubernetes cluster."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers.base import EnvironmentFailedError, Subtype
from agentrl_env_sdk.drivers.containers import ContainerEnvironment, Wire
from agentrl_env_sdk.extras import extra

with extra("kubernetes"):
    import aiohttp
    from kubernetes_asyncio import client, config, watch
    from kubernetes_asyncio.client.exceptions import ApiException
    from kubernetes_asyncio.stream import WsApiClient

LABEL = "agentrl.environment"
"""On every pod that we make; its value is the pod's name."""

_STDIN, _STDOUT, _STDERR, _ERROR = 0, 1, 2, 3


class KubernetesDriver:
    """Makes pods; they are reached by their own addresses, so the worker runs in the cluster's network.

    Args:
        namespace: where they are made.
        configuration: how the cluster is reached; the pod's own, or `~/.kube/config`, where it is absent.
    """

    kind = "kubernetes"

    def __init__(
        self, *, namespace: str = "default", configuration: "client.Configuration | None" = None
    ) -> None:
        self._namespace = namespace
        self._configuration = configuration
        self._clients: tuple[client.ApiClient, WsApiClient] | None = None

    async def create(self, subtype: Subtype, name: str) -> "PodEnvironment":
        """Make a pod and wait until it is ready."""
        if not subtype.image:
            raise ConfigError(f"environment `{subtype.name}` needs an `image`")
        plain, streams = await self._connect()
        pods = client.CoreV1Api(plain)
        try:
            body: Any = _pod(subtype, name)  # The client takes plain objects, too.
            await pods.create_namespaced_pod(self._namespace, body)
            address = await self._until_ready(pods, name)
        except ApiException as error:
            raise EnvironmentFailedError(f"the cluster refuses pod {name}: {error.reason}") from error
        addresses = {port: f"{address}:{port}" for port in subtype.ports}
        return PodEnvironment(name, subtype, addresses, client.CoreV1Api(streams), self._namespace)

    async def destroy(self, name: str) -> None:
        """Remove a pod."""
        plain, _ = await self._connect()
        try:
            await client.CoreV1Api(plain).delete_namespaced_pod(name, self._namespace, grace_period_seconds=0)
        except ApiException as error:
            if error.status != 404:
                raise EnvironmentFailedError(f"pod {name} cannot be removed: {error.reason}") from error

    async def close(self) -> None:
        """Close the connections."""
        if self._clients is not None:
            clients, self._clients = self._clients, None
            for each in clients:
                await each.close()

    async def _connect(self) -> "tuple[client.ApiClient, WsApiClient]":
        if self._clients is None:
            configuration = self._configuration or client.Configuration()
            if self._configuration is None:
                try:
                    config.load_incluster_config(configuration)
                except config.ConfigException:
                    try:
                        await config.load_kube_config(client_configuration=configuration)
                    except config.ConfigException as error:
                        raise ConfigError(f"no cluster is configured here: {error}") from error
            self._clients = client.ApiClient(configuration), WsApiClient(configuration)
        return self._clients

    async def _until_ready(self, pods: Any, name: str) -> str:
        """The pod's address, once it is ready."""
        selector = f"metadata.name={name}"
        async with watch.Watch() as events:
            stream = events.stream(pods.list_namespaced_pod, self._namespace, field_selector=selector)
            async for event in stream:
                status = event["object"].status
                if status.phase in ("Failed", "Succeeded"):
                    raise EnvironmentFailedError(f"pod {name} ended at its start: {status.phase}")
                if any(each.type == "Ready" and each.status == "True" for each in status.conditions or []):
                    return status.pod_ip
        raise EnvironmentFailedError(f"the cluster told no more of pod {name} before it was ready")


class PodEnvironment(ContainerEnvironment):
    """A pod with one container."""

    def __init__(
        self, name: str, subtype: Subtype, addresses: dict[int, str], pods: Any, namespace: str
    ) -> None:
        super().__init__(name, subtype, addresses)
        self._pods = pods
        self._namespace = namespace

    async def _execute(self, *words: str) -> Wire:
        try:
            opening = await self._pods.connect_get_namespaced_pod_exec(
                self.name,
                self._namespace,
                command=list(words),
                stdin=True,
                stdout=True,
                stderr=True,
                tty=False,
                _preload_content=False,
            )
            return _Socket(opening, await opening.__aenter__())
        except (ApiException, aiohttp.ClientError) as error:
            raise EnvironmentFailedError(f"pod {self.name} is gone: {error}") from error


class _Socket(Wire):
    def __init__(self, opening: Any, socket: "aiohttp.ClientWebSocketResponse") -> None:
        self._opening = opening
        self._socket = socket
        self._code: int | None = None

    async def pieces(self) -> AsyncIterator[tuple[int, bytes]]:
        async for message in self._socket:
            data = message.data if isinstance(message.data, bytes) else str(message.data).encode()
            channel, rest = data[0], data[1:]
            if channel in (_STDOUT, _STDERR):
                yield channel, rest
            elif channel == _ERROR:
                self._code = WsApiClient.parse_error_data(json.dumps(json.loads(rest)))
                return

    async def write(self, data: bytes) -> None:
        await self._socket.send_bytes(bytes([_STDIN]) + data)

    async def code(self) -> int:
        if self._code is None:
            raise EnvironmentFailedError("the stream of a command was lost before the command ended")
        return self._code

    async def close(self) -> None:
        with contextlib.suppress(aiohttp.ClientError, asyncio.CancelledError):
            await self._opening.__aexit__(None, None, None)


def _pod(subtype: Subtype, name: str) -> dict[str, Any]:
    limits = subtype.limits
    container: dict[str, Any] = {
        "name": "environment",
        "image": subtype.image,
        "env": [{"name": key, "value": value} for key, value in subtype.env.items()],
        "ports": [{"containerPort": port} for port in subtype.ports],
    }
    if subtype.command:
        container["command"] = list(subtype.command)
    if limits.memory_bytes is not None:
        container["resources"] = {"limits": {"memory": str(limits.memory_bytes)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {LABEL: name}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            # A worker that is lost does not keep the cluster busy for ever.
            "activeDeadlineSeconds": int(subtype.lifetime_s + subtype.start_timeout_s),
            "containers": [container],
        },
    }
