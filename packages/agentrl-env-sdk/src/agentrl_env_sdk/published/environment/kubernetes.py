"""Pods as a delegation describes them, in a Kubernetes cluster."""

import functools
from types import SimpleNamespace
from typing import Any

from agentrl_core import ConfigError
from agentrl_env_sdk.drivers import Subtype
from agentrl_env_sdk.drivers.base import EnvironmentFailedError
from agentrl_env_sdk.drivers.kubernetes import LABEL, KubernetesDriver, PodEnvironment
from agentrl_env_sdk.extras import extra
from agentrl_env_sdk.published.environment.container import EXCLUSIVE, Made, kind_of, url_of, wish
from agentrl_env_sdk.published.environment.delegation import EnvironmentDelegation

with extra("kubernetes"):
    from kubernetes_asyncio import client, config
    from kubernetes_asyncio.client.exceptions import ApiException
    from kubernetes_asyncio.stream import WsApiClient

_MAIN = "main"


class DelegatedKubernetes(KubernetesDriver):
    """Makes pods; they are reached by their own addresses, so the worker runs in the cluster's network.

    Args:
        delegation: the task's part of the configuration.
        namespace: where they are made.
        connection: what a kubeconfig holds, or `config_file` and `context`; the pod's own cluster, or that of
            `~/.kube/config`, where it is absent.
    """

    def __init__(
        self,
        delegation: EnvironmentDelegation,
        *,
        namespace: str,
        connection: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(namespace=namespace)
        self._connection = connection
        self._delegation = delegation
        self._made: dict[str, Made] = {}

    def find(self, name: str) -> Made | None:
        """A pod."""
        return self._made.get(name)

    async def create(self, subtype: Subtype, name: str) -> PodEnvironment:
        """Make a pod, wait until it is ready, and let the delegation prepare it."""
        kind = kind_of(subtype.name)
        is_exclusive = subtype.name.endswith(EXCLUSIVE)
        body = await self._describe(kind, name, int(subtype.lifetime_s) if is_exclusive else None)
        main = next((each for each in body.spec.containers if each.name == _MAIN), body.spec.containers[0])
        plain, streams = await self._connect()
        pods = client.CoreV1Api(plain)
        try:
            await pods.create_namespaced_pod(self._namespace, body)
            host = await self._until_ready(pods, name)
        except ApiException as error:
            raise EnvironmentFailedError(f"the cluster refuses pod {name}: {error.reason}") from error
        # Which of the pod's containers commands run in has to be said where there are several.
        execute = client.CoreV1Api(streams).connect_get_namespaced_pod_exec
        commands = SimpleNamespace(
            connect_get_namespaced_pod_exec=functools.partial(execute, container=main.name)
        )
        made = PodEnvironment(name, subtype, {}, commands, self._namespace)
        env = {each.name: str(each.value or "") for each in main.env or []}
        self._made[name] = Made(made, host, env)
        await self._delegation.post_create_k8s_pod(kind, name, url_of(self._delegation, kind, host))
        return made

    async def destroy(self, name: str) -> None:
        """Remove a pod."""
        self._made.pop(name, None)
        await super().destroy(name)

    async def _connect(self) -> tuple[client.ApiClient, WsApiClient]:
        if self._connection is not None and self._configuration is None:
            self._configuration = client.Configuration()
            try:
                if "clusters" in self._connection:
                    await config.load_kube_config_from_dict(
                        self._connection, client_configuration=self._configuration
                    )
                else:
                    await config.load_config(client_configuration=self._configuration, **self._connection)
            except (config.ConfigException, TypeError) as error:
                raise ConfigError(f"`connection` of the `k8s` driver is wrong: {error}") from error
        return await super()._connect()

    async def _describe(self, kind: str, name: str, lifetime_s: int | None) -> Any:
        """The pod as the delegation completes it."""
        asked = wish()
        spec = _blank(self._delegation.get_service_port(kind), lifetime_s)
        found = await self._delegation.create_k8s_pod(spec, kind, **asked.arguments)
        spec, more = found if isinstance(found, tuple) else (found, {})
        main = next((each for each in spec.containers if each.name == _MAIN), spec.containers[0])
        main.image = main.image or self._delegation.get_container_images()[kind]
        kept = [each for each in main.env or [] if each.name not in asked.env]
        main.env = kept + [client.V1EnvVar(name=key, value=value) for key, value in asked.env.items()]
        spec.automount_service_account_token = False
        spec.restart_policy = "Never"
        labels = {**((more or {}).get("labels") or {}), LABEL: name}
        metadata = client.V1ObjectMeta(
            name=name, labels=labels, annotations=(more or {}).get("annotations") or None
        )
        return client.V1Pod(metadata=metadata, spec=spec)


def _blank(port: int | list[int] | None, lifetime_s: int | None) -> client.V1PodSpec:
    """What a delegation starts from."""
    ports = port if isinstance(port, list) else [port] if port else []
    main = client.V1Container(
        name=_MAIN,
        image_pull_policy="IfNotPresent",
        env=[],
        ports=[client.V1ContainerPort(container_port=each) for each in ports],
        resources=client.V1ResourceRequirements(
            requests={"cpu": "500m", "memory": "500Mi"}, limits={"cpu": "1", "memory": "1Gi"}
        ),
    )
    return client.V1PodSpec(
        containers=[main],
        active_deadline_seconds=lifetime_s,
        node_selector={},
        restart_policy="Never",
        termination_grace_period_seconds=0,
    )
