"""A model behind an OpenAI-compatible endpoint plays tasks of a worker or a controller.

    agentrl-env serve agentrl_env_sdk.tasks.guess:Guess
    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none \\
        python examples/adapters/openai_agent.py http://127.0.0.1:5020/api guess MODEL --samples 3

The model's server must speak function calling.
"""

import argparse
import asyncio

import openai

from agentrl_core.client import SessionClient
from agentrl_env_sdk.adapters.openai import OpenAIAgent


async def play(url: str, task: str, model: str, samples: int) -> list[float]:
    """Play the first samples of a task at once; their scores."""
    async with SessionClient(url) as sessions, openai.AsyncOpenAI() as client:
        agent = OpenAIAgent(client, model, temperature=1.0)

        async def score(index: int | str) -> float:
            session = await sessions.start(task, index)
            replies = await agent.play(session)
            return float(replies[-1].metrics.get("score", 0.0))

        indices = await sessions.indices(task)
        return await asyncio.gather(*(score(index) for index in indices[:samples]))


def main() -> None:
    """Play, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="the API of a worker or a controller")
    parser.add_argument("task", help="the task's name")
    parser.add_argument("model", help="the model's name at its endpoint")
    parser.add_argument("--samples", type=int, default=1, help="how many samples are played")
    given = parser.parse_args()
    scores = asyncio.run(play(given.url, given.task, given.model, given.samples))
    print(f"scores {scores}, mean {sum(scores) / len(scores):.3f}")


if __name__ == "__main__":
    main()
