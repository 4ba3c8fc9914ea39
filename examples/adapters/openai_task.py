"""An agent that is written against the `openai` client, with its own tool and loop, as a task.

agentrl-env serve examples/adapters/openai_task.py

`solve` is what one has already; nothing in it knows of sessions.
"""

import json
from typing import Any

from agentrl_core import FunctionCall, Message, ToolCall
from agentrl_env_sdk import Session
from agentrl_env_sdk.adapters.openai import OpenAIAgentTask
from agentrl_env_sdk.oracle import Plan

_NUMBER = {"type": "integer"}
MULTIPLY = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two numbers.",
        "parameters": {"type": "object", "properties": {"a": _NUMBER, "b": _NUMBER}, "required": ["a", "b"]},
    },
}


async def solve(client: Any, question: str) -> str:
    """Answer a question with a calculator."""
    messages: list[Any] = [
        {"role": "system", "content": "Answer with the number alone. Use the tool."},
        {"role": "user", "content": question},
    ]
    while True:
        completion = await client.chat.completions.create(model="gpt", messages=messages, tools=[MULTIPLY])
        said = completion.choices[0].message
        messages.append(said)
        if not said.tool_calls:
            return said.content or ""
        for call in said.tool_calls:
            try:
                given = json.loads(call.function.arguments)
                result = str(given["a"] * given["b"])
            except (ValueError, KeyError, TypeError) as error:
                result = f"error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


async def graded(client: Any, sample: dict[str, int]) -> float:
    """Let the agent solve a sample, and grade its answer."""
    answer = await solve(client, f"What is {sample['a']} times {sample['b']}?")
    return float(answer.strip() == str(sample["a"] * sample["b"]))


class Products(OpenAIAgentTask):
    """Products of two numbers with three digits."""

    optimum = 1.0

    def __init__(self) -> None:
        samples = [{"a": 137 + 53 * place % 800, "b": 211 + 71 * place % 700} for place in range(40)]
        super().__init__(graded, name="products", splits={"train": samples[:30], "test": samples[30:]})

    def oracle(self, session: Session) -> Plan:
        """Call the tool, and say what it answers."""
        function = FunctionCall(name="multiply", arguments=json.dumps(session.sample))
        seen = yield Message(role="assistant", tool_calls=[ToolCall(id="c1", function=function)])
        yield seen.text
