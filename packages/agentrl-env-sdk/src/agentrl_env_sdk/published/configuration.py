"""`agentrl.worker.config`: reads configurations of tasks."""

from typing import Any

from agentrl_env_sdk.config import load_config

__all__ = ["ConfigLoader"]


class ConfigLoader:
    """Reads the published form of a configuration."""

    def load_from(self, path: str, name: str | None = None) -> dict[str, Any]:
        """Every entry of a file.

        Raises:
            ConfigError: a file is missing, is no configuration, or imports itself.
        """
        return load_config(path, name=name)
