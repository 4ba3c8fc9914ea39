"""Takes the pictures of `docs/dashboard.md`: a real controller, task workers, and agents that play on them.

    python docs/images/take.py [minutes of load before the pictures, 15 by default]

Needs Chromium (Debian's package `chromium`); the font is Inter where it is installed (`fonts-inter`).
"""

import asyncio
import contextlib
import json
import math
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from agentrl_core import FunctionCall, Message, SessionError, ToolCall
from agentrl_core.client import Session, SessionClient

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
TASKS = HERE.parent.parent / "benchmarks" / "latency_tasks.py"
WORKERS = [("SlowGuess", 40), ("SlowGuess", 40), ("SlowGuess", 24), ("SlowTrail", 64)]
MOST_AGENTS = 190
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]


@contextlib.contextmanager
def processes() -> Iterator[str]:
    """A controller and its workers; gives the controller's address."""
    words = [str(BIN / "agentrl-controller"), "serve", "--port", "0", "--no-grpc", "--store", "memory"]
    with contextlib.ExitStack() as stack:
        controller = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        stack.callback(controller.terminate)
        assert controller.stdout is not None
        url = re.findall(r"http://\S+", controller.stdout.readline())[0].removesuffix("/api")
        for name, slots in WORKERS:
            words = [str(BIN / "agentrl-env"), "serve", f"{TASKS}:{name}"]
            words += ["--controller", f"{url}/api", "--concurrency", str(slots)]
            worker = stack.enter_context(subprocess.Popen(words, stdout=subprocess.DEVNULL))
            stack.callback(worker.kill)  # Else it would see its episodes through.
        yield url


def call(number: int, name: str, thought: str, /, **arguments: Any) -> Message:
    """A message with one tool call."""
    function = FunctionCall(name=name, arguments=json.dumps(arguments))
    made = ToolCall(id=f"call_{number}", type="function", function=function)
    return Message(role="assistant", content=thought, tool_calls=[made])


async def play_guess(session: Session, pause_s: float) -> None:
    """Halve what is left."""
    low, high = map(int, re.findall(r"\d+", session.opening.messages[0].text))
    for turn in range(1, 5):
        await asyncio.sleep(random.expovariate(1 / pause_s))
        middle = (low + high) // 2
        thought = f"It lies between {low} and {high}, so the middle tells most."
        reply = await session.interact([call(turn, "guess", thought, number=middle)])
        if reply.finish:
            return
        low, high = (middle + 1, high) if "higher" in reply.messages[0].text else (low, middle - 1)


async def play_trail(session: Session, pause_s: float) -> None:
    """Follow the keys."""
    key = re.findall(r"follow (\w+)", session.opening.messages[0].text)[0]
    for turn in range(1, 6):
        await asyncio.sleep(random.expovariate(1 / pause_s))
        reply = await session.interact([call(turn, "read", f"What does `{key}` hold?", key=key)])
        if reply.finish:
            return
        key = reply.messages[0].text
        if key.isdecimal():
            await session.interact([call(turn + 1, "answer", "That is a number.", number=int(key))])
            return


async def agent(client: SessionClient, number: int, wanted: Any) -> None:
    """Plays one session after the other, for as long as there is to be an agent of this number."""
    while True:
        if number >= wanted():
            await asyncio.sleep(1.0)
            continue
        task, play = ("trail", play_trail) if number % 3 == 0 else ("guess", play_guess)
        with contextlib.suppress(SessionError):
            session = await client.start(task, random.randrange(900))
            await play(session, 2.0)


@contextlib.asynccontextmanager
async def load(url: str) -> AsyncIterator[SessionClient]:
    """Agents whose number rises and falls."""
    began = time.monotonic()

    def wanted() -> float:
        minutes = (time.monotonic() - began) / 60
        return MOST_AGENTS * (0.72 + 0.28 * math.sin(minutes / 2.2)) if minutes > 0.3 else 40

    async with SessionClient(f"{url}/api") as client:
        for _ in range(100):
            if len(await client.tasks()) == 2:
                break
            await asyncio.sleep(0.2)
        agents = [asyncio.create_task(agent(client, n, wanted)) for n in range(MOST_AGENTS)]
        try:
            yield client
        finally:
            for each in agents:
                each.cancel()
            await asyncio.gather(*agents, return_exceptions=True)


async def by_hand(page: Page, url: str) -> None:
    """Play two turns in the browser."""
    await page.goto(f"{url}/#/play?task=guess")
    await page.get_by_label("Sample", exact=True).fill("12")
    await page.get_by_role("button", name="Start").click()
    opening = await page.get_by_role("article", name="Environment").inner_text()
    low = int(re.findall(r"from (\d+)", opening)[0])
    for turn, number in enumerate((low + 4, low + 2)):  # Wrong ones for this sample.
        await page.get_by_label(re.compile("^number")).fill(str(number))
        await page.keyboard.press("Enter")
        await page.get_by_role("article", name="Tool, guess").nth(turn).wait_for()
    await page.get_by_label(re.compile("^number")).fill(str(low + 1))


async def take(browser: Browser, client: SessionClient, url: str, scheme: Any) -> None:
    """Every picture in one theme."""
    context = await browser.new_context(
        color_scheme=scheme, viewport={"width": 1360, "height": 850}, device_scale_factor=1.5
    )
    page = await context.new_page()

    async def shoot(name: str) -> None:
        await page.wait_for_timeout(1_500)
        await page.screenshot(path=HERE / f"dashboard-{name}-{scheme}.png")

    for name, view in {"overview": "", "workers": "workers", "sessions": "sessions?state=busy"}.items():
        await page.goto(f"{url}/#/{view}")
        await shoot(name)
    session = await client.start("guess", 12)
    await asyncio.wait_for(play_guess(session, 0.5), 60)
    await page.goto(f"{url}/#/sessions/{session.id}")
    await page.locator(".assistant details.call").first.click()
    await shoot("session")
    await by_hand(page, url)
    await shoot("play")
    await context.close()


async def main(minutes: float) -> None:
    """Load, then pictures."""
    with processes() as url:
        async with load(url) as client, async_playwright() as playwright:
            await asyncio.sleep(60 * minutes)
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            for scheme in ("light", "dark"):
                await take(browser, client, url, scheme)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 15.0))
