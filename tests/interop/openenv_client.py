"""The real OpenEnv clients, and its validator, on a server of ours; prints what they saw as JSON.

python openenv_client.py URL
"""

import asyncio
import json
import sys

from openenv.cli._validation import validate_running_environment
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import CallToolAction, MCPToolClient

url = sys.argv[1]


async def generic():
    async with GenericEnvClient(base_url=url) as env:
        first = await env.reset(index=0, seed=3, episode_id="mine")
        low = int(first.observation["text"].split()[-3])
        results = [first]
        for number in (low + 4, *range(low, low + 10)):
            action = {"type": "call_tool", "tool_name": "guess", "arguments": {"number": number}}
            results.append(await env.step(action))
            if results[-1].done:
                break
        state = await env.state()
        try:
            await env.step({"type": "jump"})
        except RuntimeError as error:
            refused = str(error)
        return {"results": [vars(result) for result in results], "state": state, "refused": refused}


async def with_tools():
    async with MCPToolClient(base_url=url) as env:
        await env.reset(index=1)
        tools = [tool.model_dump() for tool in await env.list_tools()]
        wrong = await env.call_tool("guess", number="x")
        outside = await env.step(CallToolAction(tool_name="guess", arguments={"number": 5}))
        return {"tools": tools, "wrong": wrong, "outside": outside.observation.model_dump(mode="json")}


async def main():
    seen = {"generic": await generic(), "tools": await with_tools()}
    seen["report"] = await asyncio.to_thread(validate_running_environment, url)
    print("RESULT " + json.dumps(seen))


asyncio.run(main())
