"""The pages of a worker in a real browser: an episode played by hand, and the description of the API."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

TASK = '''
"""Adds up to what is asked for."""
from typing import Literal
from agentrl_env_sdk import Session, Task, tool
from agentrl_env_sdk.content import image_part, text_part

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

class Sums(Task):
    splits = {"train": 2, "test": {"big <b>": 50}}

    def setup(self, session: Session) -> str:
        session.state["sum"] = 0
        return f"reach {session.sample} & <i>stop</i>, seed {session.seed}"

    @tool
    def add(self, session: Session, number: int, times: int = 1, sign: Literal["+", "-"] = "+"):
        """Add a number.

        Args:
            number: what to add.
        """
        session.state["sum"] += number * times * (1 if sign == "+" else -1)
        session.reward(0.25)
        return f"sum {session.state['sum']}"

    @tool
    def look(self, session: Session):
        """See it."""
        return [text_part("a picture"), image_part("data:image/png;base64," + PIXEL)]

    @tool
    def stop(self, session: Session, why: str, tags: list[str] | None = None):
        """End it."""
        session.finish(reward=0.5, score=0.75)
        return f"ended because {why!r}, {tags}"
'''


@contextlib.contextmanager
def worker(folder: Path, *words: str) -> Iterator[SimpleNamespace]:
    (folder / "sums.py").write_text(TASK)
    command = [str(Path(sys.executable).parent / "agentrl-env"), "serve", str(folder / "sums.py"), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield SimpleNamespace(url=process.stdout.readline().split()[-1].removesuffix("/api"))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def served(tmp_path_factory: Any) -> Iterator[SimpleNamespace]:
    with worker(tmp_path_factory.mktemp("task")) as served:
        yield served


def test_an_episode_is_played_by_hand(served: SimpleNamespace, watch: Any) -> None:
    page = watch.open(served)
    page.get_by_role("heading", name="sums").wait_for()
    page.get_by_label("Split").select_option("test")
    assert page.get_by_label("Sample").input_value() == "big <b>"
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Start an episode").click()
    conversation = page.get_by_role("region", name="Conversation")
    conversation.get_by_text("reach 50 & <i>stop</i>, seed 7").wait_for()

    page.get_by_label("number integer").fill("3")
    page.get_by_label("times integer").fill("2")
    page.get_by_label("sign").select_option("-")
    page.get_by_role("button", name="Call add").click()
    conversation.get_by_text("sum -6").wait_for()
    state = page.locator("#state")
    assert "Turns\n1\nReturn\n0.25" in state.inner_text()

    page.get_by_label("Say").fill("hello")
    page.get_by_role("button", name="Send the text").click()
    conversation.get_by_text("call a tool").wait_for()

    page.locator("summary", has_text="look").click()
    page.get_by_role("button", name="Call look").click()
    image = conversation.get_by_role("img")
    image.wait_for()
    assert image.evaluate("image => image.naturalWidth") == 1

    page.locator("summary", has_text="stop").click()
    page.get_by_label("why string").fill('"enough"')
    page.get_by_label("tags array").fill('["a", "b"]')
    page.get_by_role("button", name="Call stop").click()
    conversation.get_by_text("""ended because '"enough"', ['a', 'b']""").wait_for()
    assert "completed" in state.inner_text()
    assert "score\n0.75" in state.inner_text()
    assert not page.get_by_role("button", name="Call stop").is_visible()


def test_an_episode_is_cancelled_and_what_goes_wrong_is_told(served: SimpleNamespace, watch: Any) -> None:
    page = watch.open(served, expected="400")
    page.get_by_role("heading", name="sums").wait_for()
    page.get_by_label("Sample").fill("9")
    page.get_by_role("button", name="Start an episode").click()
    page.get_by_role("alert").get_by_text("none is 9").wait_for()
    page.get_by_label("Sample").fill("1")
    page.get_by_role("button", name="Start an episode").click()
    page.get_by_label("number integer").wait_for()
    page.get_by_label("times integer").fill("")
    page.get_by_role("button", name="Cancel the episode").click()
    page.locator("#state").get_by_text("cancelled").wait_for()
    page.get_by_text("0 of 64 episodes").wait_for()


def test_the_description_is_shown_and_its_routes_are_tried(served: SimpleNamespace, watch: Any) -> None:
    page = watch.open(served, "docs")
    page.locator("summary", has_text="POST /api/start_sample").click()
    page.get_by_label("Body").locator("visible=true").fill('{"index": 1}')
    page.get_by_role("button", name="Try it").locator("visible=true").click()
    page.get_by_text("HTTP 200, session_id:").wait_for()
    shown = page.locator("details[open] pre").all_inner_texts()
    assert any("index?: integer | string" in text for text in shown)
    assert any("reach 1 &" in text for text in shown)


def test_a_token_is_asked_for_where_the_worker_has_one(tmp_path: Path, watch: Any) -> None:
    with worker(tmp_path, "--token", "secret") as guarded:
        page = watch.open(guarded, expected="401")
        page.get_by_label("Token").fill("secret")
        page.get_by_role("button", name="Start an episode").click()
        page.get_by_text("reach 0 &").wait_for()
