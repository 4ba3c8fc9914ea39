"""From a seed to a model folder: demonstrations, tokenizer, imitation, and a gate on how well it plays."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from agentrl_core import AgentRLError
from agentrl_core.client import SessionClient
from agentrl_workers.batch import is_success
from agentrl_workers.chat import ChatRenderer
from agentrl_workers.config import RolloutConfig
from agentrl_workers.engines import Generation, SamplingParams
from agentrl_workers.engines.embedded import EmbeddedEngine
from agentrl_workers.rollout import Episode, Rollout
from agentrl_workers.warmstart.demonstrations import Demonstration, play_demonstrations, success_rate
from agentrl_workers.warmstart.imitation import ImitationConfig, demonstration_sample, imitate, new_model
from agentrl_workers.warmstart.players import SKILLS
from agentrl_workers.warmstart.tokenizer import train_tokenizer

_VOCABULARY = 512
_CONTEXT_LENGTH = 512
_GATE = (0.15, 0.5)
_GATE_EPISODES = 200
_REPORT_EVERY = 100


class WarmstartError(AgentRLError):
    """The model plays too badly to learn from rewards, or too well to show that it learns."""


@dataclass(frozen=True, slots=True)
class WarmstartConfig:
    """How the first model is made."""

    demonstrations: int = 6000
    """Scripted episodes of each task."""
    imitation: ImitationConfig = field(default_factory=ImitationConfig)
    """Training on them."""
    seed: int = 0
    """Of everything."""


async def make_model(
    client: SessionClient, folder: Path, config: WarmstartConfig, *, say: Callable[[str], None]
) -> dict[str, float]:
    """Make the model and write it; returns the share of episodes of each task that it solves.

    Args:
        client: reaches a controller with the quickstart's tasks.
        folder: where the model and its tokenizer go.
        config: how it is made.
        say: told of the progress, in words.

    Raises:
        WarmstartError: it plays outside the bounds; nothing is written.
    """
    torch.set_num_threads(1)
    played: list[Demonstration] = []
    for task, skill in SKILLS.items():
        demonstrations = await play_demonstrations(
            client, task, skill, count=config.demonstrations, seed=config.seed
        )
        say(
            f"{task}: {len(demonstrations)} episodes, {success_rate(demonstrations):.0%} solved by the script"
        )
        played += demonstrations
    tokenizer = train_tokenizer(_corpus(played), vocabulary=_VOCABULARY)
    renderer = ChatRenderer(tokenizer)
    samples = [demonstration_sample(demonstration, renderer) for demonstration in played]
    model = new_model(tokenizer, hidden_size=config.imitation.hidden_size, seed=config.seed)

    def report(step: int, loss: float) -> None:
        if step % _REPORT_EVERY == 0:
            say(f"imitation {step}/{config.imitation.steps}: {loss:.3f} nats a token")

    await asyncio.to_thread(imitate, model, samples, config.imitation, seed=config.seed, on_step=report)
    engine = EmbeddedEngine(model, num_slots=64, context_length=_CONTEXT_LENGTH, seed=config.seed)
    try:
        rates = {task: await _success(client, task, engine, renderer) for task in SKILLS}
    finally:
        await engine.close()
    low, high = _GATE
    for task, rate in rates.items():
        say(f"{task}: the model solves {rate:.0%} of {_GATE_EPISODES} episodes")
        if not low <= rate <= high:
            raise WarmstartError(
                f"the model solves {rate:.0%} of `{task}`, the gate is {low:.0%} to {high:.0%}; "
                "another `--seed` or more imitation steps give another model"
            )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return rates


def _corpus(demonstrations: Sequence[Demonstration]) -> list[str]:
    """What the tokenizer learns its words from; chat markers are tokens of their own anyway."""
    texts = []
    for demonstration in demonstrations:
        for tool in demonstration.tools:
            names = ", ".join(tool.function.parameters.get("properties", {}))
            texts.append(f"tools:\n{tool.function.name}({names}) {tool.function.description}\n")
        for message in demonstration.messages:
            calls = message.tool_calls or []
            texts.append(f"{message.role}\n{message.text}\n")
            texts += [
                f'\n{{"name": "{c.function.name}", "arguments": {c.function.arguments}}}\n' for c in calls
            ]
    return texts


@dataclass(frozen=True, slots=True)
class _OneEngine:
    """An engine of this process as a rollout sees the pool."""

    engine: EmbeddedEngine

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, *, affinity: str
    ) -> Generation:
        del affinity
        return await self.engine.generate(prompt_ids, sampling)


async def _success(client: SessionClient, task: str, engine: EmbeddedEngine, renderer: ChatRenderer) -> float:
    settings = RolloutConfig(context_length=_CONTEXT_LENGTH, max_tokens_per_turn=64)
    rollout = Rollout(client, _OneEngine(engine), renderer, settings)
    indices = (await client.indices(task, split="train"))[:_GATE_EPISODES]
    episodes = [Episode(f"gate-{n}", "gate", task, index, seed=n) for n, index in enumerate(indices)]
    trajectories = await asyncio.gather(*(rollout.play(episode) for episode in episodes))
    return sum(map(is_success, trajectories)) / len(trajectories)
