"""What a task says about its environments: kinds, images, ports, and how they are shared."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentrl_env_sdk.published.environment.controller import EnvironmentController


class EnvironmentDelegation:
    """The part of an environment's configuration that only the task knows; tasks derive from it.

    Args:
        name: the task's name in labels and leases.

    Attributes:
        controller: the controller that asks it; set by `create_controller`.
    """

    controller: "EnvironmentController"

    def __init__(self, name: str) -> None:
        self.name = name

    def get_name(self) -> str:
        """The task's name in labels and leases."""
        return self.name

    def get_subtypes(self) -> list[str]:
        """Kinds of environments that a session may ask for."""
        return ["default"]

    def get_service_port(self, subtype: str) -> int | list[int] | None:
        """Port of the service in an environment; where there is one, its URL is `http://host:port`."""
        del subtype
        return None

    def is_exclusive(self, subtype: str) -> bool:
        """Whether an environment belongs to one session; `get_concurrency_limit` says more."""
        del subtype
        return False

    def supports_reuse(self, subtype: str) -> bool:
        """Whether an environment outlives its sessions; `get_reuse_limit` says more."""
        del subtype
        return False

    def get_concurrency_limit(self, subtype: str) -> int:
        """Sessions in one environment at the same time; 0 stands for any number."""
        return 1 if self.is_exclusive(subtype) else 0

    def get_reuse_limit(self, subtype: str) -> int:
        """Sessions in one environment after each other; 0 stands for any number."""
        return 1 if self.is_exclusive(subtype) or not self.supports_reuse(subtype) else 0

    def get_max_execution_time(self, subtype: str) -> int:
        """Seconds that an environment of one session's own may live."""
        del subtype
        return 4 * 60 * 60

    def get_container_images(self) -> dict[str, str]:
        """Images by subtype, for those that `create_docker_container` names none."""
        raise NotImplementedError(f"`{type(self).__name__}` needs `get_container_images`, or an `Image`")

    async def create_docker_container(self, attrs: dict[str, Any], subtype: str) -> dict[str, Any]:
        """Complete the body of Docker's container creation; `Env` is a mapping in it."""
        raise NotImplementedError(f"`{type(self).__name__}` describes no container for `{subtype}`")

    async def post_create_docker_container(
        self, subtype: str, environment_id: str, environment_url: str
    ) -> None:
        """Prepare a container that is ready."""

    async def create_k8s_pod(self, spec: Any, subtype: str) -> Any:
        """Complete a pod's specification; returns it, or it and what its metadata has besides."""
        raise NotImplementedError(f"`{type(self).__name__}` describes no pod for `{subtype}`")

    async def post_create_k8s_pod(self, subtype: str, environment_id: str, environment_url: str) -> None:
        """Prepare a pod that is ready."""

    async def create_nomad_job(self, job: dict[str, Any], subtype: str) -> dict[str, Any]:
        """Complete a Nomad job; no driver asks for one."""
        raise NotImplementedError(f"`{type(self).__name__}` describes no job for `{subtype}`")

    async def post_create_nomad_job(self, subtype: str, environment_id: str, environment_url: str) -> None:
        """Prepare a job that is ready."""

    def has_homepage(self) -> bool:
        """Whether each session gets one more environment that links to the others."""
        return False

    def get_homepage_subtype(self) -> str:
        """The kind of that environment."""
        raise NotImplementedError(f"`{type(self).__name__}` has a homepage and needs `get_homepage_subtype`")

    def get_homepage_envs(self, site_urls: dict[str, str]) -> dict[str, str]:
        """Environment variables of that environment, from the URLs of the others by subtype."""
        raise NotImplementedError(f"`{type(self).__name__}` has a homepage and needs `get_homepage_envs`")
