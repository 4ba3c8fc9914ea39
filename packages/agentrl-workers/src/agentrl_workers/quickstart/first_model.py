"""The model that the quickstart begins with: the one that ships, or made anew."""

import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from agentrl_core import ConfigError
from agentrl_core.client import SessionClient
from agentrl_workers.quickstart.options import TARGETS
from agentrl_workers.services import LocalEnvironments
from agentrl_workers.warmstart import ImitationConfig, WarmstartConfig, make_model


def shipped_model() -> Path:
    """The folder of the warm-started model that comes with the package.

    Raises:
        ConfigError: the installation lacks it.
    """
    folder = Path(str(resources.files("agentrl_workers") / "presets" / "quickstart-model"))
    if not (folder / "config.json").is_file():
        raise ConfigError(f"`{folder}` is missing from the installation; `--from-scratch` makes it anew")
    return folder


async def make_first_model(
    folder: Path, *, seed: int, steps: int, demonstrations: int, say: Callable[[str], None]
) -> None:
    """Make the model on services of its own.

    Raises:
        ConfigError: the folder is in use.
        WarmstartError: the model plays too well or too badly.
    """
    _check_empty(folder)
    config = WarmstartConfig(demonstrations, ImitationConfig(steps=steps), seed)
    with tempfile.TemporaryDirectory() as logs:
        async with (
            LocalEnvironments(list(TARGETS.values()), Path(logs)) as environments,
            SessionClient(environments.url) as client,
        ):
            await make_model(client, folder, config, say=say)
    say(f"wrote {folder}")


def _check_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"`{folder}` is not empty; choose another folder")
