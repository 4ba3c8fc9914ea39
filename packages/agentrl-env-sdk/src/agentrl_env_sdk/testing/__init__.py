"""Play tasks in memory: for the unit tests of a task, on the runner that serves them.

    play(Task) --> Episode --call, say, act--> Runner --> your task
                      ^------ Observation -------'

`play` for async tests, `play_sync` for plain ones; agents play an episode to its end. The pytest plugin
(`agentrl_env_sdk.testing.plugin`, loaded by itself) brings a fixture `play`.
"""

from agentrl_env_sdk.oracle import Action, Observation, Plan, act
from agentrl_env_sdk.testing.agents import (
    Agent,
    DoNothingAgent,
    OracleAgent,
    RandomAgent,
    ScriptedAgent,
)
from agentrl_env_sdk.testing.episode import Episode, EpisodeError, play
from agentrl_env_sdk.testing.sync import SyncEpisode, play_sync

__all__ = [
    "Action",
    "Agent",
    "DoNothingAgent",
    "Episode",
    "EpisodeError",
    "Observation",
    "OracleAgent",
    "Plan",
    "RandomAgent",
    "ScriptedAgent",
    "SyncEpisode",
    "act",
    "play",
    "play_sync",
]
