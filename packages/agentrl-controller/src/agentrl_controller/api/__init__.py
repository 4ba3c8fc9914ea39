"""The controller over HTTP."""

from agentrl_controller.api.app import create_app

__all__ = ["create_app"]
