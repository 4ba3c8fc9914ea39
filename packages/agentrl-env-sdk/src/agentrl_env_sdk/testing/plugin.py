"""The pytest plugin: a fixture that plays episodes, and `--agentrl-env-validate` for the conformance suite.

pytest --agentrl-env-validate my_task.py      # each check is a test
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from agentrl_env_sdk.testing.sync import SyncEpisode, play_sync


@pytest.fixture
def play() -> Iterator[Callable[..., SyncEpisode]]:
    """`play(Task, index=0, seed=1)` begins an episode, which is broken off after the test.

    Takes what `agentrl_env_sdk.testing.play` takes.
    """
    with ExitStack() as episodes:

        def begin(task: Any, index: Any = None, **options: Any) -> SyncEpisode:
            return episodes.enter_context(play_sync(task, index, **options))

        yield begin
